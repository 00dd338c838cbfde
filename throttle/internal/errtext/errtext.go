// Package errtext shortens what a caller passed for an error message.
package errtext

import "strconv"

// Quote returns s in quotes, clipped when it is long.
func Quote(s string) string { return strconv.Quote(Clip(s)) }

// Clip keeps an error readable when somebody passes a whole file as a limit.
func Clip(s string) string {
	const most = 40
	if len(s) <= most {
		return s
	}
	return s[:most] + "..."
}
