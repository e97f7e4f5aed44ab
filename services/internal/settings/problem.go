package settings

import (
	"fmt"
	"strings"
)

// maxProblems bounds what is reported of one write; after so many the reader
// has a wrong file, not a typo.
const maxProblems = 50

// Problem is one thing wrong with a write, and where. Line and Column count
// from 1; both are 0 where the cause is not in the text.
type Problem struct {
	Line   int    `json:"line,omitempty"`
	Column int    `json:"column,omitempty"`
	Field  string `json:"field,omitempty"`
	Reason string `json:"reason"`
}

func (p Problem) String() string {
	var b strings.Builder
	if p.Line > 0 {
		fmt.Fprintf(&b, "line %d, column %d: ", p.Line, p.Column)
	}
	if p.Field != "" {
		b.WriteString(p.Field + ": ")
	}
	b.WriteString(p.Reason)
	return b.String()
}

// Problems is the error of a write that cannot be right, whatever is stored.
type Problems []Problem

func (p Problems) Error() string { return list("the settings are refused, nothing was changed", p) }

// Conflict is the error of a write that carries older versions than are
// stored: somebody wrote in between.
type Conflict []Problem

func (c Conflict) Error() string {
	return list("the settings were changed by somebody else, nothing was written", c)
}

func list(head string, ps []Problem) string {
	if len(ps) == 1 {
		return head + ": " + ps[0].String()
	}
	var b strings.Builder
	b.WriteString(head + ":")
	for _, p := range ps {
		b.WriteString("\n  " + p.String())
	}
	return b.String()
}

// nearest is the word of choices that looks most like word, or "" when none
// is near enough to be meant.
func nearest(word string, choices []string) string {
	fold := func(s string) string {
		return strings.NewReplacer("_", "", "-", "", " ", "").Replace(strings.ToLower(s))
	}
	best, bestDistance := "", 3
	for _, c := range choices {
		d := distance(fold(word), fold(c))
		// A word may differ by two letters, a short one by one, or be a
		// beginning ("MONDAY" for "MON").
		if len(c) >= 3 && strings.HasPrefix(fold(word), fold(c)) {
			d = min(d, 1)
		}
		if d >= bestDistance || d >= max(2, len(c)/2) {
			continue
		}
		best, bestDistance = c, d
	}
	return best
}

// distance is the number of letters to insert, remove, replace or swap
// (optimal string alignment).
func distance(a, b string) int {
	if len(a) > 40 || len(b) > 40 {
		return 40
	}
	rows := make([][]int, len(a)+1)
	for i := range rows {
		rows[i] = make([]int, len(b)+1)
		rows[i][0] = i
	}
	for j := range rows[0] {
		rows[0][j] = j
	}
	for i := 1; i <= len(a); i++ {
		for j := 1; j <= len(b); j++ {
			cost := 1
			if a[i-1] == b[j-1] {
				cost = 0
			}
			rows[i][j] = min(rows[i-1][j]+1, rows[i][j-1]+1, rows[i-1][j-1]+cost)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				rows[i][j] = min(rows[i][j], rows[i-2][j-2]+1)
			}
		}
	}
	return rows[len(a)][len(b)]
}

// hint ends a message about an unknown word.
func hint(word string, choices []string) string {
	if n := nearest(word, choices); n != "" {
		return fmt.Sprintf("; did you mean %q?", n)
	}
	return "; known are " + strings.Join(choices, ", ")
}
