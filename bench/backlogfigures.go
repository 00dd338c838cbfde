package main

import (
	"fmt"
	"slices"
	"time"
)

// inversions counts the pairs that stand in the other order than their numbers.
func inversions(order []int) int {
	if len(order) < 2 {
		return 0
	}
	left, right := slices.Clone(order[:len(order)/2]), slices.Clone(order[len(order)/2:])
	n := inversions(left) + inversions(right)
	slices.Sort(left)
	slices.Sort(right)
	i := 0
	for _, r := range right {
		for i < len(left) && left[i] <= r {
			i++
		}
		n += len(left) - i
	}
	return n
}

func sortedDurations(d []time.Duration) []time.Duration { return slices.Sorted(slices.Values(d)) }

// quantile of sorted durations, the upper one of two; zero of none.
func quantile(sorted []time.Duration, q float64) time.Duration {
	if len(sorted) == 0 {
		return 0
	}
	return sorted[min(len(sorted)-1, int(q*float64(len(sorted))))]
}

func millis(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

// latenessOf is lateness in words.
func latenessOf(sorted []time.Duration) string {
	if len(sorted) == 0 {
		return "none of them waited"
	}
	return fmt.Sprintf("late by %s ms (p50), %s ms (p99), %s ms (most)",
		number(millis(quantile(sorted, 0.5))), number(millis(quantile(sorted, 0.99))), number(millis(quantile(sorted, 1))))
}
