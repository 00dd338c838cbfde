// Command headway is the operator's tool: it says what waits, why, until when and behind
// whom, and changes limits and closings while everything runs. "headway help" lists the
// commands, and docs/operations.md shows them at work. Package prove describes one of them,
// "headway prove".
package main
