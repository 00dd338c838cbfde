package redisserver

import "testing"

// Two processes own different ports, and neither hands one out twice.
func TestPortsHaveOneOwner(t *testing.T) {
	t.Parallel()
	var one, other portOwner
	t.Cleanup(func() {
		for _, ln := range append(one.blocks, other.blocks...) {
			ln.Close()
		}
	})
	taken := map[string]bool{}
	take := func(o *portOwner) string {
		t.Helper()
		port, err := o.take()
		if err != nil {
			t.Fatal(err)
		}
		if taken[port] {
			t.Errorf("port %s was handed out twice", port)
		}
		taken[port] = true
		return port
	}
	for range blockSize + 50 { // more than a block has
		take(&one)
		take(&other)
	}
	back := take(&one)
	one.giveBack(back)
	delete(taken, back)
	for range blockSize {
		if take(&one) == back {
			return
		}
	}
	t.Errorf("port %s was given back and not handed out again in %d times", back, blockSize)
}
