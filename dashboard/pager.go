package dashboard

import (
	"fmt"
	"maps"
	"net/url"
	"strconv"

	"github.com/headwayq/headway/inspect"
)

// lineMost is how many rows a list has on a page.
const lineMost = 50

// pager are the links of a list that goes over several pages.
type pager struct {
	First, Prev, Next string // addresses; empty for none
	Text              string // which rows these are; empty when that is not known
}

// skipMax bounds how many rows are skipped, because what is skipped may have to be read.
const skipMax = 10_000

// skipOf reads how many rows a parameter skips.
func skipOf(q url.Values, param string) (int, error) {
	text := q.Get(param)
	if text == "" {
		return 0, nil
	}
	skip, err := strconv.Atoi(text)
	if err != nil || skip < 0 || skip > skipMax {
		return 0, fmt.Errorf("%w: %s is %q, want a number from 0 to %d", errRequest, param, clip(text, 20), skipMax)
	}
	return skip, nil
}

// with is the address of a page with another value of a parameter.
func (d *board) with(path string, q url.Values, param, value string) string {
	q = maps.Clone(q)
	if q == nil {
		q = url.Values{}
	}
	if q.Del(param); value != "" {
		q.Set(param, value)
	}
	if len(q) == 0 {
		return d.cfg.Prefix + path
	}
	return d.cfg.Prefix + path + "?" + q.Encode()
}

// pageOf is the page of a list that an address names, with the links to those beside it.
func pageOf[T any](d *board, path string, q url.Values, param string, all []T) ([]T, pager, error) {
	skip, err := skipOf(q, param)
	if err != nil {
		return nil, pager{}, err
	}
	from := skip
	if from >= len(all) { // the list has become shorter
		from = max(0, len(all)-1) / lineMost * lineMost
	}
	to := min(from+lineMost, len(all))
	var p pager
	if from > 0 {
		p.Prev = d.with(path, q, param, before(from))
	}
	if to < len(all) {
		p.Next = d.with(path, q, param, strconv.Itoa(to))
	}
	if p != (pager{}) {
		p.Text = fmt.Sprintf("%d to %d of %d", from+1, to, len(all))
	}
	return all[from:to], p, nil
}

// before is where the page begins that ends at a row: empty for the first page.
func before(from int) string {
	if from <= lineMost {
		return ""
	}
	return strconv.Itoa(from - lineMost)
}

// cursors are the links of a list that is read from a cursor on.
func (d *board) cursors(path string, q url.Values, next inspect.Cursor) (p pager) {
	if q.Get("from") != "" {
		p.First = d.with(path, q, "from", "")
	}
	if next != "" {
		p.Next = d.with(path, q, "from", string(next))
	}
	return p
}
