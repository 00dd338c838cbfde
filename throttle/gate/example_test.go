package gate_test

import (
	"errors"
	"fmt"
	"time"

	"github.com/headwayq/headway/throttle/gate"
)

func ExampleParse() {
	for _, text := range []string{
		"09:00-21:00 Mon,Tue,Wed,Thu,Fri Europe/Berlin",
		"09:00-18:00 Mon-Fri; 10:00-14:00 Sat except 12-26,12-25 recipient",
		`cron "0 9 * * MON-FRI" to "@midnight" Asia/Shanghai`,
		"09:00-21:00 Mon-Fri",
	} {
		g, err := gate.Parse(text)
		if err != nil {
			fault, _ := errors.AsType[*gate.Error](err)
			fmt.Printf("%s is %s, want %s\n", fault.Field, fault.Value, fault.Want)
			continue
		}
		fmt.Printf("%v (zone %q)\n", g, g.Zone())
	}
	// Output:
	// 09:00-21:00 Mon-Fri Europe/Berlin (zone "Europe/Berlin")
	// 09:00-18:00 Mon-Fri; 10:00-14:00 Sat except 12-25,12-26 recipient (zone "")
	// cron "0 9 * * mon-fri" to "@midnight" Asia/Shanghai (zone "Asia/Shanghai")
	// zone is missing, want a name of the time zone database such as Europe/Berlin, UTC, or recipient
}

// From Friday's closing to Monday's opening it is 60 hours, one less where
// clocks go forward.
func ExampleGate_Openings() {
	g, err := gate.Parse("09:00-21:00 Mon-Fri Europe/Berlin")
	if err != nil {
		fmt.Println(err)
		return
	}
	berlin, err := time.LoadLocation(g.Zone())
	if err != nil {
		fmt.Println(err)
		return
	}
	friday := time.Date(2026, 3, 27, 12, 0, 0, 0, berlin)
	openings := g.Openings(friday, friday.AddDate(0, 0, 3), nil)
	for _, o := range openings {
		fmt.Println(o.Open.In(berlin).Format(time.RFC1123), "-", o.Close.In(berlin).Format(time.RFC1123))
	}
	fmt.Println("closed for", openings[1].Open.Sub(openings[0].Close))
	// Output:
	// Fri, 27 Mar 2026 09:00:00 CET - Fri, 27 Mar 2026 21:00:00 CET
	// Mon, 30 Mar 2026 09:00:00 CEST - Mon, 30 Mar 2026 21:00:00 CEST
	// closed for 59h0m0s
}

// The sender's office and the hours of the recipient, who is in Tokyo.
func ExampleOpenings() {
	office, err := gate.Parse("07:00-21:00 Mon-Fri Europe/Berlin")
	if err != nil {
		fmt.Println(err)
		return
	}
	daytime, err := gate.Parse("09:00-18:00 recipient")
	if err != nil {
		fmt.Println(err)
		return
	}
	tokyo, err := time.LoadLocation("Asia/Tokyo")
	if err != nil {
		fmt.Println(err)
		return
	}
	gates := []gate.InZone{
		{Rule: "office", Gate: office},
		{Rule: "daytime", Gate: daytime, In: tokyo},
	}
	noon := time.Date(2026, 3, 6, 12, 0, 0, 0, time.UTC)
	rule, closed := gate.FirstClosed(gates, noon)
	fmt.Println(rule, closed)
	for _, o := range gate.Openings(gates, noon, noon.AddDate(0, 0, 4)) {
		fmt.Println(o.Open, "-", o.Close)
	}
	// Output:
	// daytime true
	// 2026-03-09 06:00:00 +0000 UTC - 2026-03-09 09:00:00 +0000 UTC
	// 2026-03-10 06:00:00 +0000 UTC - 2026-03-10 09:00:00 +0000 UTC
}
