package worker

import "github.com/headwayq/headway/throttle"

// ReleaseLater hands the release of a grant's leases to the background.
func (a *Adapter) ReleaseLater(l *throttle.Limiter, d throttle.Decision) {
	a.lateGiveBacks.release(l.Policy(), d)
}
