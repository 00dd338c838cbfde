package queue

import (
	"errors"
	"fmt"
	"reflect"
	"time"

	"github.com/hibiken/asynq"
)

// asynqPackage is where asynq is, also as a fork or when it is vendored.
var asynqPackage = reflect.TypeOf(asynq.MaxRetry(0)).PkgPath()

// madeByAsynq says that asynq itself made an option. asynq takes an option by its Go type
// and drops every foreign one, whatever its Type method says. One of asynq's own that is
// not known here, of a newer version, passes as it is.
func madeByAsynq(opt asynq.Option) bool {
	return opt != nil && reflect.TypeOf(opt).PkgPath() == asynqPackage
}

// checkOptions returns every option that asynq would alter or drop in silence,
// joined, each a [*OptionError]. It also looks at options that a later one
// overrides, as asynq does with those that it refuses itself: an empty queue
// name, task id or group stays asynq's error.
func checkOptions(opts []asynq.Option) error {
	var errs []error
	for _, opt := range opts {
		if _, ok := opt.(maxWaitOption); ok {
			errs = append(errs, &OptionError{Option: opt.String(), Reason: "it is for Book and BookMany"})
			continue
		}
		if !madeByAsynq(opt) {
			errs = append(errs, &OptionError{Option: fmt.Sprintf("%T", opt), Reason: "not made by asynq, which would ignore it"})
			continue
		}
		if reason := checkOption(opt); reason != "" {
			errs = append(errs, &OptionError{Option: opt.String(), Reason: reason})
		}
	}
	return errors.Join(errs...)
}

// MaxWait is an option for [Client.Book] and [Client.BookMany], on the task or at the
// call: a task that may not start within d from now is refused with a
// throttle.TooLateError. With a d of zero or less it must be able to start at once. A task that
// waits for a slot of throttle.Concurrent is booked all the same: the slot may be free before its lease ends.
// The last of several counts, and the shorter of it and asynq.Deadline. [Client.Enqueue] and [Client.EnqueueMany] book nothing, and
// refuse it with an [OptionError].
func MaxWait(d time.Duration) asynq.Option { return maxWaitOption(d) }

type maxWaitOption time.Duration

// maxWaitOpt is none of asynq's own types.
const maxWaitOpt asynq.OptionType = -1

func (o maxWaitOption) String() string         { return fmt.Sprintf("MaxWait(%v)", time.Duration(o)) }
func (o maxWaitOption) Type() asynq.OptionType { return maxWaitOpt }
func (o maxWaitOption) Value() any             { return time.Duration(o) }

// bookingOptions are those of a task to be booked.
type bookingOptions struct {
	maxWait time.Duration // as in throttle.Request
	id      bool          // the user named it
	named   bool          // there may be another like it: the user named it, or it is unique
}

// checkBooking is [checkOptions] for a task to be booked.
func checkBooking(opts []asynq.Option) (bookingOptions, error) {
	var b bookingOptions
	var errs []error
	rest := make([]asynq.Option, 0, len(opts))
	for _, opt := range opts {
		if d, ok := opt.(maxWaitOption); ok {
			b.maxWait = max(time.Duration(d), 0)
			if d <= 0 {
				b.maxWait = -1
			}
			continue
		}
		if rest = append(rest, opt); !madeByAsynq(opt) {
			continue
		}
		switch opt.Type() {
		case asynq.TaskIDOpt:
			b.id, b.named = true, true
		case asynq.UniqueOpt:
			b.named = true
		case asynq.ProcessAtOpt, asynq.ProcessInOpt:
			errs = append(errs, &OptionError{Option: opt.String(), Reason: "a task that is booked starts when its limits let it"})
		case asynq.GroupOpt:
			errs = append(errs, &OptionError{Option: "Group", Reason: "a task of a group does not run by itself, and can't be booked"})
		}
	}
	return b, errors.Join(append(errs, checkOptions(rest))...)
}

// checkOption returns what is wrong with one of asynq's options, or "".
func checkOption(opt asynq.Option) (reason string) {
	least := time.Duration(0) // no time-out of one's own, no retention
	switch opt.Type() {
	case asynq.TimeoutOpt, asynq.RetentionOpt:
	case asynq.UniqueOpt:
		least = time.Second // zero would be no lock at all
	default:
		return ""
	}
	d, ok := opt.Value().(time.Duration)
	switch {
	case !ok:
		return fmt.Sprintf("its value is a %T, want a duration", opt.Value())
	// a negative time-out is over before the task starts: asynq would retry it without ever running it
	case d < least:
		return fmt.Sprintf("want at least %v", least)
	// asynq cuts the fraction off: 500ms of time-out become 0, which means 30 min
	case d%time.Second != 0:
		return "want whole seconds"
	}
	return ""
}
