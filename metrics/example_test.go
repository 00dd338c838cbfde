package metrics_test

import (
	"context"
	"fmt"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/headwayq/headway/metrics"
	"github.com/headwayq/headway/throttle"
)

func ExampleNew() {
	reg := prometheus.NewRegistry()
	m, err := metrics.New(reg)
	if err != nil {
		fmt.Println(err)
		return
	}
	sms, err := throttle.NewLocal("sms", throttle.Sliding(1, time.Hour), throttle.Config{Observer: m.Observer()})
	if err != nil {
		fmt.Println(err)
		return
	}
	for range 3 {
		if _, err := sms.TryAcquire(context.Background(), "+491701234567", 1); err != nil {
			fmt.Println(err)
			return
		}
	}
	families, err := reg.Gather()
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, f := range families {
		for _, sample := range f.GetMetric() {
			if f.GetName() == "headway_admissions_total" {
				fmt.Println(sample.GetLabel()[0].GetValue(), sample.GetCounter().GetValue())
			}
		}
	}
	// Output:
	// granted 1
	// refused 2
}
