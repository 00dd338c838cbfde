package batchscripts

import (
	"fmt"
	"testing"

	"github.com/redis/go-redis/v9"
)

// Elements that share a position, as those of a source do that gave others when it was
// read again, come each once, also when what came is taken out before the next page.
func TestEachElementOfOnePosition(t *testing.T) {
	t.Parallel()
	for name, out := range map[string]bool{"they stay": false, "they are taken out": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBatch(t, 1000)
			unfinished := keysOf(b.q, "b").unfinished
			var all []redis.Z
			for i := range 500 {
				at := i / 3
				if i >= 100 && i < 350 {
					at = 40
				}
				all = append(all, redis.Z{Score: float64(at), Member: fmt.Sprint("e", i)})
			}
			b.raw.ZAdd(t.Context(), unfinished, all...)
			got, last := make(map[string]int), int64(0)
			err := EachElement(0, 7, func(from int64, most int) ([]Element, error) {
				return UnfinishedElements(t.Context(), b.rdb, b.q, "b", from, most)
			}, func(page []Element) error {
				if len(page) > 7 || page[0].Position < last {
					t.Errorf("a page of %d from position %d on behind %d", len(page), page[0].Position, last)
				}
				for _, e := range page {
					if got[e.ID]++; out {
						b.raw.ZRem(t.Context(), unfinished, e.ID)
					}
				}
				last = page[len(page)-1].Position
				return nil
			})
			if err != nil || len(got) != len(all) {
				t.Errorf("%d elements came, %v, want %d", len(got), err, len(all))
			}
			for id, n := range got {
				if n != 1 {
					t.Errorf("%s came %d times, want once", id, n)
				}
			}
		})
	}
}
