package settings

import (
	"fmt"
	"maps"
	"net/mail"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
	_ "time/tzdata" // zones are the same wherever Tocsin runs
	"unicode"
	"unicode/utf8"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	settingsv1 "github.com/tocsin/tocsin/proto/gen/tocsin/settings/v1"
)

// Bounds of single values.
const (
	maxHold     = 7 * 24 * time.Hour
	maxSilence  = 30 * 24 * time.Hour
	maxRearm    = 7 * 24 * time.Hour
	maxPerHour  = 65535
	maxNameLen  = 200
	maxWindows  = 64
	maxRegions  = 64
	maxModes    = 32
	maxPersons  = 1000
	maxUnsubbed = 1000
)

// decoder reads nodes over values that are there, so that a field left out
// keeps its value, and collects what is wrong.
type decoder struct {
	problems Problems
}

// field reads one value into where it belongs.
type field func(n *node, path string)

// fields is the table of a mapping: what it may hold.
type fields map[string]field

// skip is for keys that were read before.
func skip(*node, string) {}

func (d *decoder) fail(n *node, path, format string, args ...any) {
	p := Problem{Field: path, Reason: fmt.Sprintf(format, args...)}
	if n != nil {
		p.Line, p.Column = n.line, n.col
	}
	d.add(p)
}

func (d *decoder) add(p Problem) {
	if len(d.problems) < maxProblems {
		d.problems = append(d.problems, p)
	}
}

// object reads a mapping by its table.
func (d *decoder) object(n *node, path string, table fields) {
	if !d.is(n, path, mapping) {
		return
	}
	for _, e := range n.entries {
		read, ok := table[e.key]
		at := join(path, e.key)
		if !ok {
			d.add(Problem{Line: e.line, Column: e.col, Field: at, Reason: fmt.Sprintf("unknown field %q", e.key) + hint(e.key, slices.Sorted(maps.Keys(table)))})
			continue
		}
		read(e.value, at)
	}
}

func join(path, key string) string {
	if path == "" {
		return key
	}
	return path + "." + key
}

// is checks the form of a node. Nothing (null) is refused everywhere: a list
// that lost its indentation must not clear what is stored.
func (d *decoder) is(n *node, path string, want nodeKind) bool {
	if n.kind == want {
		return true
	}
	if n.kind == null {
		way := map[nodeKind]string{
			mapping: "leave the key out to keep what is stored", sequence: "write [] for an empty list, or leave the key out to keep what is stored",
			scalar: `write "" for no text, or leave the key out to keep what is stored`, truth: "write true or false, or leave the key out to keep what is stored",
		}[want]
		d.fail(n, path, "has no value; %s", way)
		return false
	}
	if n.kind == truth && want == scalar {
		d.fail(n, path, "%s is true or false to YAML; put a text in quotes: %q", n.text, n.text)
		return false
	}
	got := n.kind.String()
	if n.kind == scalar {
		got = strconv.Quote(clip(n.text))
	}
	d.fail(n, path, "%s is wanted here, not %s", want, got)
	return false
}

func clip(s string) string {
	if utf8.RuneCountInString(s) > 60 {
		return string([]rune(s)[:60]) + "…"
	}
	return s
}

// each walks a list.
func (d *decoder) each(n *node, path string, limit int, read func(i int, n *node, path string)) bool {
	if !d.is(n, path, sequence) {
		return false
	}
	if len(n.items) > limit {
		d.fail(n, path, "has %d entries, more than the %d that are kept", len(n.items), limit)
		return false
	}
	for i, item := range n.items {
		read(i, item, fmt.Sprintf("%s[%d]", path, i))
	}
	return true
}

func (d *decoder) boolean(into *bool) field {
	return func(n *node, path string) {
		if n.kind != truth {
			if n.kind == scalar {
				d.fail(n, path, "%q is neither true nor false (without quotes)", clip(n.text))
			} else {
				d.is(n, path, truth)
			}
			return
		}
		*into = strings.EqualFold(n.text, "true")
	}
}

// name is a text for people: no control characters, so no line breaks.
func (d *decoder) name(into *string) field {
	return func(n *node, path string) {
		if !d.is(n, path, scalar) {
			return
		}
		if utf8.RuneCountInString(n.text) > maxNameLen {
			d.fail(n, path, "is %d characters long, more than %d", utf8.RuneCountInString(n.text), maxNameLen)
			return
		}
		if strings.ContainsFunc(n.text, unicode.IsControl) {
			d.fail(n, path, "%q has a line break or another control character; write it on one line", clip(n.text))
			return
		}
		*into = n.text
	}
}

var idPattern = regexp.MustCompile(`^[A-Za-z0-9._:-]{1,64}$`)

// reference reads the id of another object; "" says "none".
func (d *decoder) reference(into *string) field {
	return func(n *node, path string) {
		if s, ok := d.readID(n, path, true); ok {
			*into = s
		}
	}
}

func (d *decoder) readID(n *node, path string, mayBeEmpty bool) (string, bool) {
	if n.kind == scalar && !n.quoted && looksNumeric(n.text) {
		d.fail(n, path, "%s is a number to YAML; put the id in quotes: %q", n.text, n.text)
		return "", false
	}
	if !d.is(n, path, scalar) {
		return "", false
	}
	if n.text == "" && mayBeEmpty {
		return "", true
	}
	if !idPattern.MatchString(n.text) {
		d.fail(n, path, "%q is not an id: 1 to 64 of A-Z a-z 0-9 . _ : -", clip(n.text))
		return "", false
	}
	return n.text, true
}

var sexagesimal = regexp.MustCompile(`^[-+]?[0-9]+(:[0-5]?[0-9])+$`)

// looksNumeric says that some YAML reader would take a plain text for a
// number (100e0001 is 1000, 00011557 is octal, 12:30 is 750).
func looksNumeric(s string) bool {
	if !strings.ContainsAny(s, "0123456789") {
		return false
	}
	plain := strings.ReplaceAll(s, "_", "")
	if _, err := strconv.ParseFloat(plain, 64); err == nil || strings.Contains(errText(err), "out of range") {
		return true
	}
	if _, err := strconv.ParseInt(plain, 0, 64); err == nil {
		return true
	}
	return sexagesimal.MatchString(s)
}

func errText(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

func (d *decoder) ids(into *[]string, limit int) field {
	return func(n *node, path string) {
		var out []string
		good := true
		if !d.each(n, path, limit, func(_ int, n *node, path string) {
			id, ok := d.readID(n, path, false)
			if ok && slices.Contains(out, id) {
				d.fail(n, path, "%q is named twice", id)
				ok = false
			}
			good = good && ok
			out = append(out, id)
		}) || !good {
			return
		}
		*into = out
	}
}

// names is a list of texts, each once.
func (d *decoder) names(into *[]string, limit int) field {
	return func(n *node, path string) {
		var out []string
		good := true
		if !d.each(n, path, limit, func(_ int, n *node, path string) {
			var s string
			before := len(d.problems)
			d.name(&s)(n, path)
			if slices.Contains(out, s) {
				d.fail(n, path, "%q is named twice", s)
			}
			good = good && before == len(d.problems)
			out = append(out, s)
		}) || !good {
			return
		}
		*into = out
	}
}

// word reads one of a closed set.
func (d *decoder) word(n *node, path, what string, choices []string) (int, bool) {
	if !d.is(n, path, scalar) {
		return 0, false
	}
	i := slices.Index(choices, n.text)
	if i < 0 {
		d.fail(n, path, "unknown %s %q%s", what, clip(n.text), hint(n.text, choices))
	}
	return i, i >= 0
}

func (d *decoder) zone(into *string) field {
	return func(n *node, path string) {
		if !d.is(n, path, scalar) {
			return
		}
		if n.text == "" {
			*into = ""
			return
		}
		if n.text == "Local" || !knownZone(n.text) {
			way := "; write an IANA name such as Europe/Berlin"
			if better := titleZone(n.text); better != n.text && knownZone(better) {
				way = fmt.Sprintf("; did you mean %q?", better)
			}
			d.fail(n, path, "unknown time zone %q%s", clip(n.text), way)
			return
		}
		*into = n.text
	}
}

func knownZone(name string) bool {
	_, err := time.LoadLocation(name)
	return err == nil
}

// titleZone writes "america/new york" as "America/New_York".
func titleZone(s string) string {
	up := true
	return strings.Map(func(r rune) rune {
		if r == ' ' {
			r = '_'
		}
		if up {
			r = unicode.ToUpper(r)
		} else {
			r = unicode.ToLower(r)
		}
		up = r == '/' || r == '_' || r == '-'
		return r
	}, s)
}

func (d *decoder) email(into *string) field {
	return func(n *node, path string) {
		if !d.is(n, path, scalar) {
			return
		}
		if why := badAddress(n.text); why != "" {
			d.fail(n, path, "%q is no mail address: %s", clip(n.text), why)
			return
		}
		*into = n.text
	}
}

// badAddress says what is wrong with an address: only plain ones, local part
// and domain, are taken (no display name, no quoted local part).
func badAddress(s string) string {
	local, domain, ok := strings.Cut(s, "@")
	switch {
	case s == "":
		return "it is empty"
	case !ok:
		return "there is no @ in it"
	case len(s) > 254 || len(local) > 64:
		return "it is longer than 254 bytes, or 64 before the @ (RFC 5321)"
	case strings.ContainsAny(s, "<>"):
		return `write the bare address here and the person's name in "name"`
	case strings.ContainsAny(s, "\"()[],;:\\") || strings.ContainsFunc(s, unicode.IsSpace) || strings.ContainsFunc(s, unicode.IsControl):
		return "it has characters that do not belong there"
	case local == "" || domain == "":
		return "one side of the @ is empty"
	}
	if a, err := mail.ParseAddress(s); err != nil || a.Address != s {
		return "it is not of the form person@example.org"
	}
	for label := range strings.SplitSeq(domain, ".") {
		if label == "" || len(label) > 63 || strings.HasPrefix(label, "-") || strings.HasSuffix(label, "-") {
			return fmt.Sprintf("%q is not a domain", domain)
		}
	}
	return ""
}

// duration reads as Go writes it, 0 without a unit.
func (d *decoder) duration(into **durationpb.Duration, limit time.Duration) field {
	return func(n *node, path string) {
		if v, ok := d.readDuration(n, path, limit); ok {
			*into = durationpb.New(v)
		}
	}
}

func (d *decoder) readDuration(n *node, path string, limit time.Duration) (time.Duration, bool) {
	if !d.is(n, path, scalar) {
		return 0, false
	}
	v, err := time.ParseDuration(n.text)
	switch {
	case err != nil && n.text != "" && strings.Trim(n.text, "0123456789.") == "":
		d.fail(n, path, "%s has no unit; write %ss or %sm", n.text, n.text, n.text)
	case err != nil:
		d.fail(n, path, "%q is not a duration; write it like 300s, 5m or 1h30m", clip(n.text))
	case v < 0:
		d.fail(n, path, "%s is negative; 0s is the least", n.text)
	case v > limit:
		d.fail(n, path, "%s is more than %s", n.text, days(limit))
	case v%time.Millisecond != 0:
		d.fail(n, path, "%s is finer than a millisecond", n.text)
	default:
		return v, true
	}
	return 0, false
}

func days(d time.Duration) string { return fmt.Sprintf("%d days", int(d.Hours()/24)) }

// inheritable is a hold: "inherit" takes it back to what the site, the
// account or the service says.
func (d *decoder) inheritable(into **durationpb.Duration) field {
	return func(n *node, path string) {
		if n.kind == scalar && n.text == "inherit" {
			*into = nil
			return
		}
		d.duration(into, maxHold)(n, path)
	}
}

func (d *decoder) holds(into **settingsv1.Holds) field {
	return func(n *node, path string) {
		h := *into
		if h == nil {
			h = &settingsv1.Holds{}
		}
		d.object(n, path, fields{
			"offline":         d.inheritable(&h.Offline),
			"internetOffline": d.inheritable(&h.InternetOffline),
			"online":          d.inheritable(&h.Online),
		})
		// One way to say nothing, so that equal settings are equal bytes.
		if h.Offline == nil && h.InternetOffline == nil && h.Online == nil {
			h = nil
		}
		*into = h
	}
}

// instant reads RFC 3339, cut to milliseconds (rule T1).
func (d *decoder) instant(into **timestamppb.Timestamp) field {
	return func(n *node, path string) {
		if !d.is(n, path, scalar) {
			return
		}
		t, err := time.Parse(time.RFC3339Nano, n.text)
		if err != nil || t.Year() < 1970 || t.Year() > 9999 {
			d.fail(n, path, "%q is not an instant; write it like 2026-03-02T08:00:00Z", clip(n.text))
			return
		}
		*into = timestamppb.New(t.UTC().Truncate(time.Millisecond))
	}
}

func (d *decoder) count(into *uint32, limit int64) field {
	return func(n *node, path string) {
		if v, ok := d.readCount(n, path, limit); ok {
			*into = uint32(v)
		}
	}
}

func (d *decoder) readCount(n *node, path string, limit int64) (int64, bool) {
	if !d.is(n, path, scalar) {
		return 0, false
	}
	v, err := strconv.ParseInt(n.text, 10, 64)
	switch {
	case err != nil || n.quoted:
		d.fail(n, path, "%q is not a whole number (without quotes)", clip(n.text))
	case v < 0:
		d.fail(n, path, "%d is negative; 0 is the least", v)
	case v > limit:
		d.fail(n, path, "%d is more than %d", v, limit)
	default:
		return v, true
	}
	return 0, false
}

var (
	levelNames  = []string{"LOW", "HIGH", "SYSTEM"}
	dayNames    = []string{"MON", "TUE", "WED", "THU", "FRI", "SAT", "SUN"}
	rhythmNames = []string{"atOnce", "hourly", "daily"}
	kindNames   = []string{"CAMERA", "BRIDGE"}
	typeNames   = []string{"ALERT", "OFFLINE", "ONLINE", "INTERNET_OFFLINE"}
)

// levels reads a set; it is kept in the order LOW, HIGH, SYSTEM.
func (d *decoder) levels(into *[]settingsv1.Level_Value) field {
	return func(n *node, path string) {
		var out []settingsv1.Level_Value
		good := true
		if !d.each(n, path, len(levelNames), func(_ int, n *node, path string) {
			i, ok := d.word(n, path, "level", levelNames)
			v := settingsv1.Level_Value(i + 1)
			if ok && slices.Contains(out, v) {
				d.fail(n, path, "%s is named twice", n.text)
				ok = false
			}
			good = good && ok
			out = append(out, v)
		}) || !good {
			return
		}
		slices.Sort(out)
		*into = out
	}
}

// clock reads "HH:MM" as minutes after local midnight; "24:00" is the end of
// the day.
func (d *decoder) clock(into *uint32) field {
	return func(n *node, path string) {
		if !d.is(n, path, scalar) {
			return
		}
		h, m, ok := strings.Cut(n.text, ":")
		hours, err1 := strconv.ParseUint(h, 10, 8)
		minutes, err2 := strconv.ParseUint(m, 10, 8)
		total := hours*60 + minutes
		if !ok || len(h) != 2 || len(m) != 2 || err1 != nil || err2 != nil || minutes > 59 || total > 24*60 {
			d.fail(n, path, "%q is not a time of day; write \"00:00\" to \"24:00\"", clip(n.text))
			return
		}
		*into = uint32(total)
	}
}

// windows reads a user's windows; [] is "never".
func (d *decoder) windows(into *[]*settingsv1.Window) field {
	return func(n *node, path string) {
		out := []*settingsv1.Window{}
		if n.kind == null {
			d.fail(n, path, "has no value; write [] for never, or leave the key out to keep what is stored (a new user gets always)")
			return
		}
		if !d.each(n, path, maxWindows, func(_ int, n *node, path string) {
			w := &settingsv1.Window{}
			out = append(out, w)
			d.object(n, path, fields{"days": d.days(&w.Days), "start": d.clock(&w.StartMinutes), "end": d.clock(&w.EndMinutes)})
			if n.kind != mapping {
				return
			}
			for _, need := range []string{"days", "start", "end"} {
				if n.child(need) == nil {
					d.fail(n, path, "%q is missing; a window has days, start and end", need)
				}
			}
			if w.StartMinutes == 24*60 {
				d.fail(n.child("start"), join(path, "start"), `"24:00" ends a day and starts none; write "00:00"`)
			}
		}) {
			return
		}
		*into = out
	}
}

func (d *decoder) days(into *[]settingsv1.Window_Day) field {
	return func(n *node, path string) {
		var out []settingsv1.Window_Day
		if !d.each(n, path, len(dayNames), func(_ int, n *node, path string) {
			i, ok := d.word(n, path, "day", dayNames)
			v := settingsv1.Window_Day(i + 1)
			if ok && slices.Contains(out, v) {
				d.fail(n, path, "%s is named twice", n.text)
			}
			out = append(out, v)
		}) {
			return
		}
		if len(out) == 0 {
			d.fail(n, path, "names no day, so the window never opens; name some of %s", strings.Join(dayNames, ", "))
		}
		slices.Sort(out)
		*into = out
	}
}

// digests reads rhythms by level; a level left out keeps its rhythm, atOnce
// takes it away.
func (d *decoder) digests(into *[]*settingsv1.Digest) field {
	return func(n *node, path string) {
		rhythm := map[settingsv1.Level_Value]settingsv1.Digest_Rhythm{}
		for _, g := range *into {
			rhythm[g.GetLevel()] = g.GetRhythm()
		}
		table := fields{}
		for i, name := range levelNames {
			table[name] = func(n *node, path string) {
				if r, ok := d.word(n, path, "rhythm", rhythmNames); ok {
					rhythm[settingsv1.Level_Value(i+1)] = settingsv1.Digest_Rhythm(r)
				}
			}
		}
		d.object(n, path, table)
		out := []*settingsv1.Digest{}
		for _, l := range slices.Sorted(maps.Keys(rhythm)) {
			if rhythm[l] != settingsv1.Digest_AT_ONCE {
				out = append(out, &settingsv1.Digest{Level: l, Rhythm: rhythm[l]})
			}
		}
		*into = out
	}
}

// unsubscribed reads notification types and "device:<id>".
func (d *decoder) unsubscribed(into *[]string) field {
	return func(n *node, path string) {
		var out []string
		good := true
		if !d.each(n, path, maxUnsubbed, func(_ int, n *node, path string) {
			if !d.is(n, path, scalar) {
				good = false
				return
			}
			id, device := strings.CutPrefix(n.text, "device:")
			switch {
			case device && !idPattern.MatchString(id):
				d.fail(n, path, "%q does not name a device; write device:<id>", clip(n.text))
				good = false
			case !device && !slices.Contains(typeNames, n.text):
				d.fail(n, path, "unknown notification type %q%s, or device:<id>", clip(n.text), hint(n.text, typeNames))
				good = false
			case slices.Contains(out, n.text):
				d.fail(n, path, "%q is named twice", n.text)
				good = false
			}
			out = append(out, n.text)
		}) || !good {
			return
		}
		*into = out
	}
}
