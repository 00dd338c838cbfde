package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
)

const lineMax = 120 // of a paragraph in the document

// writeDocs writes the document and its pictures, and takes away pictures that
// are of an older one.
func (b *bench) writeDocs(dir string) error {
	pictures := filepath.Join(dir, "benchmarks")
	if err := os.MkdirAll(pictures, 0o755); err != nil {
		return err
	}
	old, err := filepath.Glob(filepath.Join(pictures, "*.svg"))
	if err != nil {
		return err
	}
	for _, name := range old {
		err = errors.Join(err, os.Remove(name))
	}
	for _, p := range b.parts {
		for _, c := range p.charts {
			err = errors.Join(err, os.WriteFile(filepath.Join(pictures, c.file+".svg"), []byte(c.svg()), 0o644))
		}
	}
	return errors.Join(err, os.WriteFile(filepath.Join(dir, "benchmarks.md"), []byte(b.markdown()), 0o644))
}

// markdown is the document.
func (b *bench) markdown() string {
	rounds := "1 round"
	if b.rounds > 1 {
		rounds = fmt.Sprintf("%d rounds", b.rounds)
	}
	var s strings.Builder
	s.WriteString("# Benchmarks\n\n" + paragraph("This page is written by `make bench`, which measures everything on it anew. Do not edit it."))
	s.WriteString(paragraph(fmt.Sprintf("Measured on %d cores, with Redis %s on the same machine, by %s. Headway and its rivals took turns in one run "+
		"(ours, theirs, ours, theirs ...), %s; a figure is the median of its rounds. Figures of two runs, or of two machines, can't be compared; "+
		"the ratios of one run can.", runtime.NumCPU(), b.redis, runtime.Version(), rounds)))
	s.WriteString(paragraph("The ratio is Headway's figure divided by the rival's, with the lowest and the highest of the rounds behind it: " +
		"above 1 is good where a figure is a rate (/s), " +
		"and bad where it is a time, a size or a count. Everybody who uses go-redis has the same options, its defaults."))
	s.WriteString(paragraph("In this build: " + strings.Join(versions(), ", ") + ". Not measured, because they could not be fetched through " +
		"the Go module proxy: " + strings.Join(unavailable, ", ") + "."))
	if targets := b.targets(); len(targets) > 0 {
		s.WriteString("## Targets\n\n" + table(targets))
	}
	for _, p := range b.parts {
		s.WriteString("## " + p.title + "\n\n")
		for _, c := range p.charts {
			s.WriteString("![" + c.title + "](benchmarks/" + c.file + ".svg)\n\n")
		}
		if len(p.rows) > 0 {
			s.WriteString(table(p.rows))
		}
		for _, text := range p.remarks {
			s.WriteString(paragraph(text))
		}
	}
	s.WriteString("## Repeating it\n\n" + paragraph("`make bench` runs everything and writes this page. "+
		"`cd bench && go run . -only 'acquire|memory'` runs some sections, `-rounds` says how often, "+
		"`-short` (as in `make bench-short`) runs everything once with small numbers; none of them writes. A redis-server must be installed."))
	return strings.TrimSuffix(s.String(), "\n")
}

// table is rows in Markdown.
func table(rows []row) string {
	var s strings.Builder
	s.WriteString("| " + strings.Join(heads, " | ") + " |\n|---|--:|---|--:|--:|---|---|\n")
	for _, r := range rows {
		cells := r.cells()
		for i, c := range cells {
			cells[i] = strings.ReplaceAll(c, "|", `\|`)
		}
		if cells[len(cells)-1] == "no" {
			cells[len(cells)-1] = "**no**"
		}
		s.WriteString("| " + strings.Join(cells, " | ") + " |\n")
	}
	return s.String() + "\n"
}

// paragraph breaks a text into lines.
func paragraph(text string) string {
	var s strings.Builder
	width := 0
	for word := range strings.FieldsSeq(text) {
		n := len([]rune(word))
		switch {
		case width == 0:
		case width+1+n > lineMax:
			s.WriteByte('\n')
			width = 0
		default:
			s.WriteByte(' ')
			width++
		}
		s.WriteString(word)
		width += n
	}
	return s.String() + "\n\n"
}
