package device

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"
)

var update = flag.Bool("update", false, "write what the machine says into the transcripts")

// TestTranscripts proves the examples of the rules, and the cases that have
// gone wrong for others: each transcript must read as it is written.
//
// A line is one step, at a time after the start:
//
//	+75s online at +74s received +74s run a/1 seq 7   a sample; all but the state may be left out
//	+75s bits 1441847                                 a sample by its mask; bridge 1441847 of a bridge
//	+75s motion door m1 at +74s                       motion began in a region; - for none
//	+75s tick                                         time goes on
//	holds 300s 300s 95s                               offline, internet offline, online
//
// and what the machine says to it follows, with "=>".
func TestTranscripts(t *testing.T) {
	names, err := filepath.Glob("testdata/*.script")
	if err != nil || len(names) == 0 {
		t.Fatalf("no transcripts: %v", err)
	}
	for _, name := range names {
		t.Run(strings.TrimSuffix(filepath.Base(name), ".script"), func(t *testing.T) {
			text, err := os.ReadFile(name)
			if err != nil {
				t.Fatal(err)
			}
			got := play(t, string(text))
			if *update {
				if err := os.WriteFile(name, []byte(got), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			if got != string(text) && !*update {
				t.Errorf("the machine says\n%s\nbut %s has\n%s", got, name, text)
			}
		})
	}
}

// scriptStart is +0s of the transcripts.
var scriptStart = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC).UnixMilli()

// play runs the inputs of a transcript and returns it with what comes out.
func play(t *testing.T, text string) string {
	t.Helper()
	p := player{t: t, rules: DefaultRules}
	for line := range strings.Lines(text) {
		line = strings.TrimRight(line, "\n")
		if strings.Contains(line, "=>") {
			continue
		}
		fmt.Fprintln(&p.out, line)
		if fields := strings.Fields(line); len(fields) > 0 && fields[0] != "#" {
			p.line(fields)
		}
	}
	return p.out.String()
}

type player struct {
	t     *testing.T
	rules Rules
	state State
	spans []Span
	out   strings.Builder
}

func (p *player) line(fields []string) {
	p.t.Helper()
	if fields[0] == "holds" {
		p.rules = Rules{p.duration(fields[1]), p.duration(fields[2]), p.duration(fields[3])}
		return
	}
	in := Input{At: p.time(fields[0])}
	verb, rest := fields[1], fields[2:]
	switch verb {
	case "online", "offline", "internet-offline", "off", "unknown":
		in.Kind = Status
		in.Reading.Condition = map[string]Condition{
			"online": Online, "offline": Offline, "internet-offline": InternetOffline, "off": Off,
		}[verb]
		if in.Reading.Condition == Unknown {
			in.Reading.Why = StatusUnknown
		}
	case "bits", "bridge":
		bits, err := strconv.ParseUint(rest[0], 0, 32)
		if err != nil {
			p.t.Fatal(err)
		}
		in.Kind, rest = Status, rest[1:]
		in.Reading = Read(uint32(bits), verb == "bridge")
	case "motion":
		in.Kind = MotionStart
	case "tick":
		p.fire(in.At)
		return
	default:
		p.t.Fatalf("no such step: %q", fields)
	}
	var region, span string
	if in.Kind == MotionStart {
		region, span, rest = strings.Trim(rest[0], "-"), strings.Trim(rest[1], "-"), rest[2:]
	}
	said, received := in.At, int64(0)
	for ; len(rest) > 1; rest = rest[2:] {
		switch value := rest[1]; rest[0] {
		case "at":
			if said = 0; value != "never" {
				said = p.time(value)
			}
		case "received":
			received = p.time(value)
		case "run":
			source, epoch, _ := strings.Cut(value, "/")
			in.Run = RunOf(source, epoch)
		case "seq":
			n, err := strconv.ParseUint(value, 10, 64)
			if err != nil {
				p.t.Fatal(err)
			}
			in.Sequence = n
		default:
			p.t.Fatalf("no such word: %q", rest[0])
		}
	}
	in.Receive = ReceiveTime(received, in.At, received != 0)
	in.Occur, in.Corrected = OccurTime(said, in.Receive)
	if in.Kind == MotionStart {
		in.Span, in.Spans = NewSpan(SpanOf(region, span, in.Occur), in.Occur), p.spans
	}
	p.fire(in.At)
	p.step(in, in.At)
	p.fire(in.At)
}

func (p *player) fire(clock int64) {
	if at, ok := p.state.Due(); ok && at <= clock {
		p.step(Input{Kind: Wake, At: clock}, at)
	}
}

func (p *player) step(in Input, at int64) {
	p.t.Helper()
	var effects []Effect
	p.state, effects = p.rules.Step(p.state, in, nil)
	if err := p.state.Check(); err != nil {
		p.t.Errorf("%v: %+v", err, p.state)
	}
	for _, e := range effects {
		switch n := &e.Notice; e.Kind {
		case Count:
			fmt.Fprintf(&p.out, "%s => count %s\n", offset(at), e.Why)
		case Remember:
			p.spans = Remembered(p.spans, e.Span)
		case Notify:
			fmt.Fprintf(&p.out, "%s => %s %s since %s", offset(n.Decide), n.Stage, n.Type, offset(n.Since))
			switch {
			case n.Stage == Pending:
				fmt.Fprintf(&p.out, " until %s", offset(n.Deadline))
			case n.Stage == Due && n.Type != Alert:
				fmt.Fprintf(&p.out, " held %s", n.HoldSpent())
			case n.Became != NoType:
				fmt.Fprintf(&p.out, " became %s", n.Became)
			}
			if n.InOutage {
				fmt.Fprintf(&p.out, " outage %s", offset(n.Outage))
			}
			if n.Password {
				fmt.Fprint(&p.out, " password")
			}
			if n.Corrected {
				fmt.Fprint(&p.out, " corrected")
			}
			fmt.Fprintln(&p.out)
		}
	}
}

func (p *player) duration(text string) time.Duration {
	p.t.Helper()
	d, err := time.ParseDuration(text)
	if err != nil {
		p.t.Fatal(err)
	}
	return d
}

func (p *player) time(text string) int64 {
	p.t.Helper()
	return scriptStart + p.duration(text).Milliseconds()
}

func offset(ms int64) string {
	s := strconv.FormatFloat(float64(ms-scriptStart)/1000, 'f', -1, 64) + "s"
	if ms >= scriptStart {
		s = "+" + s
	}
	return s
}
