package main

import (
	"bytes"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/headwayq/headway/throttle"
)

func arrival(id, key string, granted, arrived time.Duration) Arrival {
	return Arrival{ID: id, Key: key, Phone: "+12…0117", GrantedUs: granted.Microseconds(), ArrivedUs: arrived.Microseconds()}
}

const sec = time.Second

func TestArrivalCheck(t *testing.T) {
	t.Parallel()
	one, two := throttle.Sliding(1, time.Minute), throttle.Sliding(2, time.Minute)
	for _, tt := range []struct {
		name  string
		limit throttle.Limit
		log   []Arrival
		want  GatewayStats
	}{
		{"none", one, nil, GatewayStats{}},
		{
			"the first was 0.2 s on its way", one,
			[]Arrival{arrival("1", "a", 0, 200*time.Millisecond), arrival("2", "a", 60*sec, 60*sec)},
			GatewayStats{Messages: 2, Phones: 1, MinGap: new(59800 * time.Millisecond)},
		},
		{
			"0.1 s less than that", one,
			[]Arrival{arrival("1", "a", 0, 200*time.Millisecond), arrival("2", "a", 59900*time.Millisecond, 59900*time.Millisecond)},
			GatewayStats{Messages: 2, Phones: 1, Breaches: 1, BrokenBy: map[string]int{ruleName: 1}, MinGap: new(59700 * time.Millisecond)},
		},
		{
			"a microsecond less", one,
			[]Arrival{arrival("1", "a", 0, 0), arrival("2", "a", time.Minute-1000, time.Minute-1000)},
			GatewayStats{Messages: 2, Phones: 1, Breaches: 1, BrokenBy: map[string]int{ruleName: 1}, MinGap: new(time.Minute - 1000)},
		},
		{
			"the second overtook the first", one,
			[]Arrival{arrival("2", "a", 60*sec, 61*sec), arrival("1", "a", 0, 62*sec), arrival("3", "a", 120*sec, 120*sec)},
			GatewayStats{Messages: 3, Phones: 1, MinGap: new(sec)},
		},
		{
			"two phones at once", one,
			[]Arrival{arrival("1", "a", 0, 0), arrival("2", "b", 0, 0)},
			GatewayStats{Messages: 2, Phones: 2},
		},
		{
			"the same message twice, as the limit allows", one,
			[]Arrival{arrival("1", "a", 0, 0), arrival("1", "a", 60*sec, 60*sec)},
			GatewayStats{Messages: 2, Phones: 1, Duplicates: 1, MinGap: new(60 * sec)},
		},
		{
			"before it was granted", one,
			[]Arrival{arrival("1", "a", 2*sec, sec)},
			GatewayStats{Messages: 1, Phones: 1, Early: 1},
		},
		{
			"two a minute", two,
			[]Arrival{arrival("1", "a", 0, 0), arrival("2", "a", 10*sec, 10*sec), arrival("3", "a", 60*sec, 60*sec), arrival("4", "a", 70*sec, 70*sec)},
			GatewayStats{Messages: 4, Phones: 1, MinGap: new(10 * sec)},
		},
		{
			"three a minute", two,
			[]Arrival{arrival("1", "a", 0, 0), arrival("2", "a", 10*sec, 10*sec), arrival("3", "a", 59*sec, 59*sec)},
			GatewayStats{Messages: 3, Phones: 1, Breaches: 1, BrokenBy: map[string]int{ruleName: 1}, MinGap: new(10 * sec)},
		},
	} {
		if diff := cmp.Diff(tt.want, ReplayArrivals(tt.log, smsPolicy(tt.limit))); diff != "" {
			t.Errorf("%s (-want +got):\n%s", tt.name, diff)
		}
		backwards := slices.Clone(tt.log)
		slices.Reverse(backwards)
		if diff := cmp.Diff(tt.want, ReplayArrivals(backwards, smsPolicy(tt.limit))); diff != "" {
			t.Errorf("%s, merged in another order (-want +got):\n%s", tt.name, diff)
		}
	}
}

func TestArrivalsRoundTrip(t *testing.T) {
	t.Parallel()
	want := []Arrival{arrival("1", "a", 1, 2), arrival("2", "b", 3, 4)}
	var buf bytes.Buffer
	if err := WriteArrivals(&buf, want); err != nil {
		t.Fatal(err)
	}
	got, err := ReadArrivals(&buf)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("round trip (-want +got):\n%s", diff)
	}
	_, err = ReadArrivals(strings.NewReader("\n{\"id\":\"+12025550117\"}\n"))
	if want := "arrivals: line 2 is not one of ours"; err == nil || err.Error() != want {
		t.Errorf("ReadArrivals = %v, want %s", err, want)
	}
}
