// Package cronspec reads cron expressions with robfig/cron's parser, strictly.
//
// The library reads more than cron does: empty items that never tick, signs, and
// "*-5" as "*". Its walk over the ticks of a zone loses and repeats some where the
// clock is changed, so callers read in UTC and map ticks to instants themselves.
package cronspec

import (
	"errors"
	"strings"

	"github.com/robfig/cron/v3"
)

// Standard are the fields minute, hour, day of month, month and weekday, and
// @hourly and its like. [cron.SecondOptional] may be added.
const Standard = cron.Minute | cron.Hour | cron.Dom | cron.Month | cron.Dow | cron.Descriptor

// Parse reads an expression without a zone and without @every, which are the
// callers' own. Its error may quote the expression.
func Parse(text string, fields cron.ParseOption) (*cron.SpecSchedule, error) {
	if strings.Contains(text, "=") {
		return nil, errors.New("a zone")
	}
	if !strings.HasPrefix(text, "@") {
		for field := range strings.FieldsSeq(text) {
			for item := range strings.SplitSeq(field, ",") {
				if !plain(item) {
					return nil, errors.New("an empty item, a sign, or a star with a range")
				}
			}
		}
	}
	s, err := cron.NewParser(fields).Parse("TZ=UTC " + text)
	if err != nil {
		return nil, err
	}
	spec, ok := s.(*cron.SpecSchedule)
	if !ok {
		return nil, errors.New("@every")
	}
	return spec, nil
}

// plain says whether an item is what cron calls one: a star is alone, or has a step.
func plain(item string) bool {
	star := strings.TrimLeft(item, "*?")
	return item != "" && !strings.Contains(item, "+") && (star == item || len(item)-len(star) == 1 && (star == "" || star[0] == '/'))
}
