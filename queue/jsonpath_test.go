package queue

import (
	"bytes"
	"encoding/json"
	"errors"
	"math"
	"strconv"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	"github.com/hibiken/asynq"
)

func TestJSONKey(t *testing.T) {
	t.Parallel()
	tests := []struct {
		path, payload, want string
	}{
		{"$.to", `{"to":"13612345678"}`, "13612345678"},
		{"$.to", `{"to":13612345678}`, "13612345678"},
		{"$.to", " {\n\"to\" : 7 } \r\n", "7"},
		{"$.a.b[0]", `{"a":{"b":["x","y"]}}`, "x"},
		{"$['odd key'][2]", `{"odd key":[null,{},"z"]}`, "z"},
		{"$[0].to", `[{"to":"first"},{"to":"second"}]`, "first"},
		{"$['']", `{"":"no name"}`, "no name"},
		{"$", `"13612345678"`, "13612345678"},
		{"$", " 42\n", "42"},
		{"$.n", `{"n":0}`, "0"},
		{"$.n", `{"n":-5}`, "-5"},
		{"$.n", `{"n":9007199254740993}`, "9007199254740993"}, // float64 would make it ...992
		{"$.n", `{"n":90071992547409931234567890}`, "90071992547409931234567890"},
		{"$.to", `{"to":"+86 136"}`, "+86 136"},
		{"$.to", `{"to":"007"}`, "007"},
		{"$.to", `{"to":" 1 "}`, " 1 "},
		{"$.to", `{"to":"\u0031\ud83d\ude00\n"}`, "1😀\n"},
		{"$.to", `{"\u0074o":"escaped name"}`, "escaped name"},
		{"$.to", `{"to":1,"to":"last"}`, "last"},
		{"$.a.b", `{"a":{"b":1},"a":{"b":2}}`, "2"},
		{"$.to", `{"TO":"upper","to":"lower","To":"mixed"}`, "lower"},
		{"$.to", "{\"to\":\"fine\",\"text\":\"cut \xe7\x9f\"}", "fine"}, // damage beside the path
		{"$.电话", `{"电话":"138"}`, "138"},
	}
	for _, tt := range tests {
		t.Run(tt.path+" in "+tt.payload, func(t *testing.T) {
			t.Parallel()
			got, err := MustJSONKey(tt.path)(asynq.NewTask("t", []byte(tt.payload)))
			if err != nil || got != tt.want {
				t.Errorf("JSONKey(%s) of %s = %q, %v, want %q", tt.path, tt.payload, got, err, tt.want)
			}
		})
	}
}

func TestJSONKeyRefuses(t *testing.T) {
	t.Parallel()
	const integerWanted = ", want a string or an integer"
	tests := []struct {
		path, payload, at, reason string
	}{
		{"$.to", "", "$", "is not one JSON value (byte 0)"},
		{"$.to", "to=1", "$", "is not one JSON value (byte 2)"},
		{"$.to", `{"to":"1"`, "$", "is not one JSON value (byte 9)"},
		{"$.to", `{"to":"1"} x`, "$", "is not one JSON value (byte 12)"},
		{"$.to", `{"to":"1"}{}`, "$", "is not one JSON value (byte 11)"},
		{"$.to", "\ufeff{}", "$", "is not one JSON value (byte 1)"},
		{"$.to", `{"to":01}`, "$", "is not one JSON value (byte 8)"},
		{"$.to", `{"to":+1}`, "$", "is not one JSON value (byte 7)"},
		{"$.to", `{"to":NaN}`, "$", "is not one JSON value (byte 7)"},
		{"$", strings.Repeat("[", 20000) + strings.Repeat("]", 20000), "$", "is not one JSON value (byte 10001)"},
		{"$.to", `{}`, "$.to", "is missing"},
		{"$.to", `{"To":"1","TO":"2"}`, "$.to", "is missing"},
		{"$.a[1].b", `{"a":[1]}`, "$.a[1]", "is missing"},
		{"$[0]", `[]`, "$[0]", "is missing"},
		{"$.to", `null`, "$", "is null, want an object"},
		{"$.to", `"1"`, "$", "is a string, want an object"},
		{"$.to", `[1]`, "$", "is an array, want an object"},
		{"$.a.b.c", `{"a":{"b":136}}`, "$.a.b", "is a number, want an object"},
		{"$.a[0]", `{"a":{"0":1}}`, "$.a", "is an object, want an array"},
		{"$.a[0]", `{"a":true}`, "$.a", "is a boolean, want an array"},
		{"$.to", `{"to":null}`, "$.to", "is null" + integerWanted},
		{"$.to", `{"to":true}`, "$.to", "is a boolean" + integerWanted},
		{"$.to", `{"to":{}}`, "$.to", "is an object" + integerWanted},
		{"$.to", `{"to":["1"]}`, "$.to", "is an array" + integerWanted},
		{"$.to", `{"to":1,"to":null}`, "$.to", "is null" + integerWanted},
		{"$.to", `{"to":1.0}`, "$.to", "is a number with a fraction or an exponent" + integerWanted},
		{"$.to", `{"to":1e3}`, "$.to", "is a number with a fraction or an exponent" + integerWanted},
		{"$.to", `{"to":1E3}`, "$.to", "is a number with a fraction or an exponent" + integerWanted},
		{"$.to", `{"to":-0}`, "$.to", "is an integer in an unusual spelling, want the usual one"},
		{"$.to", `{"to":""}`, "$.to", "is an empty string"},
		{"$.to", "{\"to\":\"136\xff\"}", "$.to", "is damaged text (invalid UTF-8, a lone surrogate or U+FFFD)"},
		{"$.to", `{"to":"136\ud800"}`, "$.to", "is damaged text (invalid UTF-8, a lone surrogate or U+FFFD)"},
		{"$.to", `{"to":"136\ufffd"}`, "$.to", "is damaged text (invalid UTF-8, a lone surrogate or U+FFFD)"},
	}
	for _, tt := range tests {
		t.Run(tt.path+" in "+tt.payload[:min(len(tt.payload), 40)], func(t *testing.T) {
			t.Parallel()
			got, err := MustJSONKey(tt.path)(asynq.NewTask("t", []byte(tt.payload)))
			pe, ok := errors.AsType[*PayloadError](err)
			if !ok || !errors.Is(err, ErrInvalidPayload) || got != "" {
				t.Fatalf("JSONKey(%s) = %q, %v, want a PayloadError", tt.path, got, err)
			}
			if diff := cmp.Diff(&PayloadError{Path: tt.path, At: tt.at, Reason: tt.reason}, pe); diff != "" {
				t.Errorf("PayloadError (-want +got):\n%s", diff)
			}
		})
	}
}

func TestJSONCost(t *testing.T) {
	t.Parallel()
	const outOfRange = "queue: payload: $.n is an integer out of range"
	tests := []struct {
		payload string
		want    int
		err     string
	}{
		{`{"n":1}`, 1, ""},
		{`{"n":0}`, 0, ""}, // Demand refuses it
		{`{"n":-3}`, -3, ""},
		{`{"n":` + strconv.Itoa(math.MaxInt) + `}`, math.MaxInt, ""},
		{`{"n":` + strconv.Itoa(math.MinInt) + `}`, math.MinInt, ""},
		{`{"n":9223372036854775808}`, 0, outOfRange},
		{`{"n":-9223372036854775809}`, 0, outOfRange},
		{`{"n":"3"}`, 0, "queue: payload: $.n is a string, want an integer"},
		{`{"n":3.0}`, 0, "queue: payload: $.n is a number with a fraction or an exponent, want an integer"},
		{`{"n":-0}`, 0, "queue: payload: $.n is an integer in an unusual spelling, want the usual one"},
		{`{}`, 0, "queue: payload: $.n is missing"},
	}
	cost := MustJSONCost("$.n")
	for _, tt := range tests {
		t.Run(tt.payload, func(t *testing.T) {
			t.Parallel()
			got, err := cost(asynq.NewTask("t", []byte(tt.payload)))
			if got != tt.want || (err == nil) != (tt.err == "") || err != nil && err.Error() != tt.err {
				t.Errorf("JSONCost of %s = %d, %v, want %d, %q", tt.payload, got, err, tt.want, tt.err)
			}
		})
	}
}

func TestMalformedPathIsNoFunction(t *testing.T) {
	t.Parallel()
	if key, err := JSONKey("to"); key != nil || !errors.Is(err, ErrInvalidPath) {
		t.Errorf("JSONKey(to) error = %v, want ErrInvalidPath", err)
	}
	if cost, err := JSONCost("to"); cost != nil || !errors.Is(err, ErrInvalidPath) {
		t.Errorf("JSONCost(to) error = %v, want ErrInvalidPath", err)
	}
	for name, must := range map[string]func(){
		"MustJSONKey":  func() { MustJSONKey("to") },
		"MustJSONCost": func() { MustJSONCost("to") },
	} {
		want := `queue: JSON path "to", byte 0: want $ at the start`
		if got := panicOf(must); got != want {
			t.Errorf("%s(to) panics with %v, want %s", name, got, want)
		}
	}
}

// panicOf runs f and returns what it panicked with.
func panicOf(f func()) (v any) {
	defer func() { v = recover() }()
	f()
	return nil
}

// FuzzJSONKey compares with what encoding/json makes of the whole payload, and
// looks for anything else in a key.
func FuzzJSONKey(f *testing.F) {
	for _, seed := range []string{
		`{"to":"13612345678"}`, `{"to":13612345678}`, `{"to":9007199254740993}`, `{"to":-0}`, `{"to":1.5}`, `{"to":1e9}`,
		`{"to":null}`, `{"to":""}`, `{"to":["x"]}`, `{"TO":"x"}`, `{"to":1,"to":"2"}`, `{"to":"\ud800"}`, "{\"to\":\"\xff\"}",
		`{"to":"a"} x`, `{`, ``, `null`, `"x"`, `[]`, ` {"to" : 7 } `, `{"\u0074o":1}`,
		`{"a":[{"b":0},{"b":"x"}]}`, `{"a" : [ 1.5e3 , { "b":"\"}]" , "b" : -7 } ], "to":[{}] }`, `{"a":[[],{"\u0062":"\\"}]}`, `{"a":[true]}`,
	} {
		f.Add([]byte(seed))
	}
	keys := map[string]KeyFunc{"$.to": MustJSONKey("$.to"), "$.a[1].b": MustJSONKey("$.a[1].b")}
	f.Fuzz(func(t *testing.T, payload []byte) {
		for path, key := range keys {
			before := bytes.Clone(payload)
			got, err := key(asynq.NewTask("t", payload))
			if !bytes.Equal(before, payload) {
				t.Fatal("the payload was changed")
			}
			want, ok := referenceKey(payload, path)
			if ok != (err == nil) || got != want {
				t.Fatalf("JSONKey of %q = %q, %v, want %q, %v", payload, got, err, want, ok)
			}
			if err != nil && !errors.Is(err, ErrInvalidPayload) {
				t.Errorf("JSONKey of %q = %v, want ErrInvalidPayload", payload, err)
			}
		}
	})
}

// referenceKey finds the key of one of two paths the plain way, through a decoded tree.
func referenceKey(payload []byte, path string) (string, bool) {
	dec := json.NewDecoder(bytes.NewReader(payload))
	dec.UseNumber()
	var tree any
	if !json.Valid(payload) || dec.Decode(&tree) != nil {
		return "", false
	}
	object, _ := tree.(map[string]any)
	value := object["to"]
	if path != "$.to" {
		value = nil
		if elements, _ := object["a"].([]any); len(elements) > 1 {
			inner, _ := elements[1].(map[string]any)
			value = inner["b"]
		}
	}
	switch v := value.(type) {
	case string:
		return ok(v, v != "" && !strings.ContainsRune(v, utf8.RuneError))
	case json.Number:
		return ok(v.String(), v != "-0" && !strings.ContainsAny(v.String(), ".eE"))
	}
	return "", false
}

func ok(key string, valid bool) (string, bool) {
	if !valid {
		return "", false
	}
	return key, true
}
