package queue

import (
	"bytes"
	"encoding/json"
	"unicode/utf8"
)

// What is here reads JSON that json.Valid has found to be right, and only as much
// of it as a path needs: each admission of a task does so.

// fieldOf is the value of an object's last field of a name, nil when there is none.
func fieldOf(object []byte, name string) (value []byte) {
	for i := skipSpace(object, 1); object[i] != '}'; i = skipComma(object, i) {
		end := skipValue(object, i)
		matches := isNamed(object[i:end], name)
		i = skipSpace(object, skipSpace(object, end)+1) // behind the colon
		end = skipValue(object, i)
		if matches {
			value = object[i:end]
		}
		i = end
	}
	return value
}

// elementOf is the n-th value of an array, nil when it has fewer.
func elementOf(array []byte, n int) []byte {
	for i := skipSpace(array, 1); array[i] != ']'; i = skipComma(array, i) {
		end := skipValue(array, i)
		if n == 0 {
			return array[i:end]
		}
		n--
		i = end
	}
	return nil
}

// isNamed compares a quoted name with one that is valid UTF-8 without U+FFFD.
func isNamed(quoted []byte, name string) bool {
	text, ok := plain(quoted)
	if !ok {
		var decoded string
		return json.Unmarshal(quoted, &decoded) == nil && decoded == name
	}
	return string(text) == name
}

// plain is what is between the quotes, when that is the text as it stands.
func plain(quoted []byte) (text []byte, ok bool) {
	text = quoted[1 : len(quoted)-1]
	return text, bytes.IndexByte(text, '\\') < 0 && utf8.Valid(text)
}

// skipValue is where the value ends that begins at i.
func skipValue(b []byte, i int) int {
	depth := 0
	for ; i < len(b); i++ {
		switch b[i] {
		case '"':
			i = lastOfString(b, i)
		case '{', '[':
			depth++
			continue
		case '}', ']':
			if depth == 0 {
				return i // behind a number or a word
			}
			depth--
		case ',', ':', ' ', '\t', '\n', '\r':
			if depth == 0 {
				return i
			}
			continue
		default: // a number or a word goes on
			continue
		}
		if depth == 0 {
			return i + 1
		}
	}
	return i
}

// lastOfString is where the quote is that ends the string of the one at i.
func lastOfString(b []byte, i int) int {
	for i++; b[i] != '"'; i++ {
		if b[i] == '\\' {
			i++
		}
	}
	return i
}

func skipSpace(b []byte, i int) int {
	for i < len(b) && (b[i] == ' ' || b[i] == '\t' || b[i] == '\n' || b[i] == '\r') {
		i++
	}
	return i
}

// skipComma is where the next value or name begins, or what they are in ends.
func skipComma(b []byte, i int) int {
	if i = skipSpace(b, i); b[i] == ',' {
		i = skipSpace(b, i+1)
	}
	return i
}
