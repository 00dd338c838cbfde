package main

import "testing"

func TestParseWork(t *testing.T) {
	t.Parallel()
	const (
		cpu = "# CPU\r\nused_cpu_sys:1.500000\r\nused_cpu_user:0.250000\r\nused_cpu_sys_children:9.000000\r\nused_cpu_user_children:9.000000\r\n" +
			"used_cpu_sys_main_thread:1.400000\r\nused_cpu_user_main_thread:0.200000\r\n"
		stats = "# Commandstats\r\ncmdstat_get:calls=3,usec=7000,usec_per_call=3.00,rejected_calls=0,failed_calls=0\r\n" +
			"cmdstat_evalsha:calls=2,usec=120,usec_per_call=60.00,rejected_calls=0,failed_calls=0\r\n" +
			"cmdstat_eval:calls=1,usec=30,usec_per_call=30.00,rejected_calls=0,failed_calls=0\r\n"
	)
	// All threads, without children; scripts, without what they call.
	if got, err := parseWork(cpu, stats); err != nil || got != (work{1_750_000, 150}) {
		t.Errorf("parseWork = %+v, %v, want 1.75 s in all and 150 µs in scripts", got, err)
	}
	if _, err := parseWork("", stats); err == nil {
		t.Error("parseWork without INFO cpu gives no error")
	}
	if _, err := parseWork(cpu, "cmdstat_evalsha:calls=2,usec=?,usec_per_call=60.00\r\n"); err == nil {
		t.Error("parseWork of a broken INFO commandstats gives no error")
	}
}
