package render

import (
	"fmt"
	"strings"
	"time"
	"unicode"
)

// Bounds on what data may take up, in runes.
const (
	maxName    = 120
	maxSubject = 200
)

// clean makes one line of s: no control characters, line separators or
// characters that reverse the direction of what follows (a name must not
// rewrite the sentence around it); runs of space become one; at most maxName runes.
func clean(s string) string {
	s = strings.Map(func(r rune) rune {
		switch {
		case r == unicode.ReplacementChar, unicode.Is(unicode.Bidi_Control, r):
			return -1
		case unicode.IsControl(r), unicode.IsSpace(r), unicode.In(r, unicode.Zl, unicode.Zp):
			return ' '
		default:
			return r
		}
	}, strings.ToValidUTF8(s, ""))
	return cut(strings.Join(strings.Fields(s), " "), maxName)
}

// cut shortens s to n runes, saying so by an ellipsis.
func cut(s string, n int) string {
	r := []rune(s)
	if len(r) <= n {
		return s
	}
	return strings.TrimSpace(string(r[:n-1])) + "…"
}

// unbracket keeps a name out of the brackets that Gmail ignores.
func unbracket(s string) string { return strings.NewReplacer("[", "(", "]", ")").Replace(s) }

// prefixed is prefix + s, or nothing for an empty s.
func prefixed(prefix, s string) string {
	if s == "" {
		return ""
	}
	return prefix + s
}

func firstOf(a, b string) string {
	if a != "" {
		return a
	}
	return b
}

// location is the recipient's zone and its name for people. A name that the
// zone database does not know must not cost the mail: UTC then, and it says so.
func location(name string) (*time.Location, string) {
	// LoadLocation takes "Local" to be the machine's zone, which nobody chose.
	if name == "" || name == "Local" || name == "UTC" {
		return time.UTC, "UTC"
	}
	zone, err := time.LoadLocation(name)
	if err != nil {
		return time.UTC, "UTC (the zone “" + clean(name) + "” is not known)"
	}
	return zone, name
}

// clock writes a time with its zone: "Sun 1 Mar 2026, 06:00:00 CST". Zones
// without letters of their own get "UTC+03".
func clock(t time.Time) string {
	zone, _ := t.Zone()
	if strings.HasPrefix(zone, "+") || strings.HasPrefix(zone, "-") {
		zone = "UTC" + zone
	}
	return t.Format("Mon 2 Jan 2006, 15:04:05 ") + zone
}

// length writes a duration in its two largest units: "45 s", "5 min 20 s",
// "3 h 12 min", "2 d 4 h". Negative is zero.
func length(d time.Duration) string {
	const day = 24 * time.Hour
	d = max(d, 0)
	two := func(big time.Duration, bigName string, small time.Duration, smallName string) string {
		s := fmt.Sprintf("%d %s", d/big, bigName)
		if rest := d % big / small; rest > 0 {
			s += fmt.Sprintf(" %d %s", rest, smallName)
		}
		return s
	}
	switch {
	case d < time.Minute:
		return fmt.Sprintf("%d s", d/time.Second)
	case d < time.Hour:
		return two(time.Minute, "min", time.Second, "s")
	case d < day:
		return two(time.Hour, "h", time.Minute, "min")
	default:
		return two(day, "d", time.Hour, "h")
	}
}
