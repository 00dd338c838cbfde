package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headwayq/headway/throttle"
)

const (
	jobsPerKey = 10
	assemblers = 16 // goroutines that put a crowd in place
	passSize   = 50 // jobs that go at a time, and permits of the narrow cap

	roomyCap  = "100000/1s" // holds nobody up here
	narrowCap = "50/1h"     // holds everybody up
)

// perPhone is of a window in which nobody's turn comes while it is measured.
var perPhone = throttle.Sliding(1, time.Hour)

// crowd is jobs that wait, each for its phone and all for one cap.
type crowd struct {
	rdb    *redis.Client
	policy *throttle.Policy
	narrow bool
	first  []int              // of the jobs that wait, by phone
	behind []int              // the number of the next job that comes, by phone
	grants []throttle.Request // what holds others up, by phone

	order   []int // phones whose first job goes next, in order
	holders []int // phones whose grants fill the narrow cap
}

func newCrowd(rdb *redis.Client, phones int, limit string) (*crowd, error) {
	most, err := throttle.ParseLimit(limit)
	if err != nil {
		return nil, err
	}
	phone, err := throttle.New(rdb, "phone", perPhone, throttle.Config{})
	if err != nil {
		return nil, err
	}
	all, err := throttle.New(rdb, "all", most, throttle.Config{})
	if err != nil {
		return nil, err
	}
	c := &crowd{
		rdb: rdb, narrow: limit == narrowCap,
		first: make([]int, phones), behind: make([]int, phones), grants: make([]throttle.Request, phones),
	}
	c.policy, err = throttle.NewPolicy(phone, all)
	return c, err
}

// ask is for the n-th job of a phone.
func (c *crowd) ask(phone, n int) throttle.Request {
	return throttle.Request{
		Key: phoneNumber(phone), Cost: 1, More: []throttle.KeyCost{{Key: "all", Cost: 1}},
		Job: fmt.Sprintf("job-%d-%d", phone, n),
	}
}

// place is that of the first job of a phone.
func (c *crowd) place(phone int) throttle.BookingRef {
	r, rules := c.ask(phone, c.first[phone]), c.policy.Rules()
	return throttle.BookingRef{
		Policy: c.policy, IDs: []string{rules[0].ID(r.Key), rules[1].ID("all")}, Costs: []int{1, 1}, Job: r.Job,
	}
}

// assemble lets all jobs come.
func (c *crowd) assemble(ctx context.Context) error {
	for phone := range c.first {
		if !c.narrow {
			c.order = append(c.order, phone)
			continue
		}
		granted, err := c.come(ctx, phone) // alone: the order at the cap is known
		switch {
		case err != nil:
			return err
		case granted:
			c.holders = append(c.holders, phone)
		default:
			c.order = append(c.order, phone)
		}
	}
	var wg sync.WaitGroup
	errs := make([]error, assemblers)
	for i := range assemblers {
		wg.Go(func() { errs[i] = c.assemblePart(ctx, i) })
	}
	wg.Wait()
	return errors.Join(errs...)
}

// assemblePart lets the jobs come that are not there yet. Of a phone the first
// is granted, and no other.
func (c *crowd) assemblePart(ctx context.Context, part int) error {
	for phone := part; phone < len(c.first); phone += assemblers {
		for c.behind[phone] < jobsPerKey {
			first := c.behind[phone] == 0
			granted, err := c.come(ctx, phone)
			if err := errors.Join(err, unless(err != nil || granted == first, "a job was granted that had to wait, or the other way round")); err != nil {
				return err
			}
		}
	}
	return nil
}

// come is a new job of a phone.
func (c *crowd) come(ctx context.Context, phone int) (granted bool, err error) {
	n := c.behind[phone]
	c.behind[phone]++
	d, err := c.policy.Redeem(ctx, c.ask(phone, n))
	if err == nil && d.Granted {
		c.grants[phone], c.first[phone] = d.Request, n+1
	}
	return d.Granted, err
}

// next are the phones whose first jobs go in the next pass, and those whose
// grants are given back for it.
func (c *crowd) next() (turn, before []int) {
	turn, c.order = c.order[:passSize], c.order[passSize:]
	if !c.narrow {
		return turn, turn
	}
	before, c.holders = c.holders, turn
	return turn, before
}

// makeRoom gives grants back, as if their time were over.
func (c *crowd) makeRoom(ctx context.Context, before []int) error {
	for _, phone := range before {
		if _, err := c.policy.Refund(ctx, c.grants[phone]); err != nil {
			return err
		}
	}
	return nil
}

// pass lets one job of each phone of the turn go, and another come for each that
// went before.
func (c *crowd) pass(ctx context.Context, turn, before []int) error {
	places := make([]throttle.BookingRef, len(turn))
	for i, phone := range turn {
		places[i] = c.place(phone)
	}
	for _, at := range throttle.ForWorkers.Refresh(ctx, c.rdb, places) {
		if err := errors.Join(at.Err, unless(at.Known && !at.At.After(at.Now), "a job is not due that was next")); err != nil {
			return err
		}
	}
	for _, phone := range turn {
		d, err := c.policy.Redeem(ctx, c.ask(phone, c.first[phone]))
		if err := errors.Join(err, unless(d.Granted, "a job was not granted that was next")); err != nil {
			return err
		}
		c.grants[phone] = d.Request
		c.first[phone]++
	}
	for _, phone := range before {
		if c.narrow { // its phone admits it now, and it joins the line of the cap
			if d, err := c.policy.Redeem(ctx, c.ask(phone, c.first[phone])); err != nil || d.Granted || d.Rule != "all" {
				return errors.Join(err, unless(err != nil, "a job does not wait for the cap"))
			}
		}
		if granted, err := c.come(ctx, phone); err != nil || granted {
			return errors.Join(err, unless(!granted, "a new job was granted that had to wait"))
		}
	}
	c.order = append(c.order, before...)
	return nil
}

// unless is an error when something does not hold that the figures rest on.
func unless(holds bool, text string) error {
	if holds {
		return nil
	}
	return errors.New(text)
}

// phoneNumber is the n-th of as many phones as a section likes.
func phoneNumber(n int) string { return fmt.Sprintf("+86139%08d", n) }
