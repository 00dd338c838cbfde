package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
)

// readLines reads JSON lines, each into a T that must be valid. Blank lines are left out.
func readLines[T any](r io.Reader, valid func(T) bool) ([]T, error) {
	var all []T
	buf := bufio.NewReader(r)
	for number := 1; ; number++ {
		line, err := buf.ReadBytes('\n')
		last := errors.Is(err, io.EOF)
		if err != nil && !last {
			return nil, err
		}
		if line = bytes.TrimSpace(line); len(line) > 0 {
			var v T
			if json.Unmarshal(line, &v) != nil || !valid(v) {
				return nil, fmt.Errorf("line %d is not one of ours", number)
			}
			all = append(all, v)
		}
		if last {
			return all, nil
		}
	}
}
