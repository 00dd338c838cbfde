// Package recipes is the Go code of docs/policies.md, docs/booking.md,
// docs/schedules.md, docs/batches.md and docs/httplimit.md: each function is a recipe, which the
// pages show as it stands here and a test runs.
// What the recipes do for a program of yours is to be copied, not imported.
package recipes
