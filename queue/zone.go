package queue

import (
	"encoding/json"
	"errors"
	"time"

	"github.com/hibiken/asynq"

	"github.com/headwayq/headway/queue/internal/zones"
)

// JSONZone returns a [ZoneFunc] that finds the recipient's time zone in a JSON
// payload, with paths and errors as in [JSONKey]. The value must be the name of
// a zone as in the IANA database, such as "Europe/Berlin" or "UTC". Names that
// differ per machine are refused: "", "Local", "localtime", "posixrules", and
// those that begin with "posix/" or "right/".
func JSONZone(path string) (ZoneFunc, error) {
	p, err := parsePath(path)
	if err != nil {
		return nil, err
	}
	return func(task *asynq.Task) (*time.Location, error) {
		return p.zone(task.Payload())
	}, nil
}

// MustJSONZone is [JSONZone] for a path in the source code: it panics when the
// path is malformed.
func MustJSONZone(path string) ZoneFunc {
	zone, err := JSONZone(path)
	if err != nil {
		panic(err.Error())
	}
	return zone
}

// zone reads the value at the path as the name of a time zone.
func (p path) zone(payload []byte) (*time.Location, error) {
	value, err := p.find(payload)
	if err != nil {
		return nil, err
	}
	if value[0] != '"' {
		return nil, p.fault(len(p.steps), "is "+kind(value)+", want a string")
	}
	var name string
	if err := json.Unmarshal(value, &name); err != nil {
		return nil, p.fault(len(p.steps), "is not a string that Go can read")
	}
	zone, err := zones.Load(name)
	if err != nil {
		return nil, p.fault(len(p.steps), "is no time zone that is known here")
	}
	return zone, nil
}

// zonesKnown says whether this program finds a time zone database. Without one
// each task under a gate of recipients would be refused for good.
func zonesKnown(load func(string) (*time.Location, error)) error {
	if _, err := load("Europe/Berlin"); err != nil {
		return errors.New("no time zone database, which the recipient's zone needs: install one, or import time/tzdata")
	}
	return nil
}
