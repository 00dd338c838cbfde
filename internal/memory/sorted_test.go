package memory

import (
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// TestSorted compares the set with a map that is sorted each time.
func TestSorted(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		var s sorted[string]
		want := map[string]int64{}
		for range rapid.IntRange(1, 60).Draw(t, "length") {
			m := rapid.StringMatching("[a-f]").Draw(t, "member")
			score := rapid.Int64Range(-3, 30).Draw(t, "score")
			_, known := want[m]
			switch rapid.IntRange(0, 4).Draw(t, "op") {
			case 0, 1, 2:
				want[m] = score
				if added := s.add(m, score); added == known {
					t.Fatalf("add(%q) = %v, known %v", m, added, known)
				}
			case 3:
				delete(want, m)
				if removed := s.remove(m); removed != known {
					t.Fatalf("remove(%q) = %v, known %v", m, removed, known)
				}
			case 4:
				for m, v := range want { // fewer than 20
					if score <= v && v < score+5 {
						delete(want, m)
					}
				}
				s.trim(score, score+5)
			}
			var order []scored[string]
			below := 0
			for m, v := range want {
				order = append(order, scored[string]{v, m})
				if v < score {
					below++
				}
			}
			slices.SortFunc(order, func(a, b scored[string]) int {
				if a.score != b.score {
					return int(a.score - b.score)
				}
				return int(a.member[0]) - int(b.member[0])
			})
			if !slices.Equal(order, s.order) || s.below(score) != below || len(s.scores) != s.len() {
				t.Fatalf("%v (%d below %d), want %v (%d)", s.order, s.below(score), score, order, below)
			}
		}
	})
}
