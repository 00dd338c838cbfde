package dashboard

import (
	"fmt"
	"net/url"
	"strconv"

	"github.com/headwayq/headway/inspect"
)

// lineMost is how many rows a list has on a page.
const lineMost = 50

// pager are the links of a list that goes over several pages.
type pager struct {
	Of                string // what is listed
	First, Prev, Next string // addresses; empty for none
	Text              string // which rows these are; empty when that is not known
}

// skipMax bounds how many rows are skipped.
const skipMax = 100_000

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

// list is where a list stands: on a page, behind a parameter of its address, which says how many
// rows are skipped.
type list struct {
	path, param, of string
	anchor          string // of its heading; empty where the list is all of the page
}

// pageOf is the page of a list that an address names, with the links to those beside it.
func pageOf[T any](d *board, q url.Values, of list, all []T) ([]T, pager, error) {
	from, err := skipOf(q, of.param)
	if err != nil {
		return nil, pager{}, err
	}
	if from >= len(all) { // the list has become shorter
		from = max(0, len(all)-1) / lineMost * lineMost
	}
	to := min(from+lineMost, len(all))
	p := pager{Of: of.of}
	if from > 0 {
		p.Prev = d.with(of.path, q, of.param, before(from)) + of.anchor
	}
	if to < len(all) {
		p.Next = d.with(of.path, q, of.param, strconv.Itoa(to)) + of.anchor
	}
	if p.Prev+p.Next != "" {
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

// cursorsOf are the links of a list that is read from a cursor on.
func cursorsOf(d *board, path, of string, q url.Values, next inspect.Cursor) pager {
	p := pager{Of: of}
	if q.Get("from") != "" {
		p.First = d.with(path, q, "from", "")
	}
	if next != "" {
		p.Next = d.with(path, q, "from", string(next))
	}
	return p
}
