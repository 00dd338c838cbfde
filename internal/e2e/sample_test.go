package e2e

import (
	"testing"
)

func TestSample(t *testing.T) {
	t.Parallel()
	perPhone, masked := map[string]int{}, map[string]bool{}
	for _, m := range Sample() {
		if fault := PhoneFault(m.To); fault != "" || m.Text == "" {
			t.Errorf("%v: %s", m, fault)
		}
		perPhone[m.To]++
		masked[Mask(m.To)] = true
	}
	phones := map[int]int{}
	for _, n := range perPhone {
		phones[n]++
	}
	if phones[1] != 4 || phones[2] != 4 || phones[3] != 4 || len(perPhone) != 12 {
		t.Errorf("phones by number of messages = %v, want 4 each with 1, 2 and 3", phones)
	}
	if len(masked) != len(perPhone) {
		t.Errorf("%d different masked phones, want %d: the table could not be read", len(masked), len(perPhone))
	}
	a := Sample()
	a[0].Text = "changed"
	if Sample()[0].Text == "changed" {
		t.Error("two samples share memory")
	}
}
