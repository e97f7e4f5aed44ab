package device

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"
	"unsafe"
)

// TestRead proves rule S1 mask by mask (domain, 7.4).
func TestRead(t *testing.T) {
	for _, c := range []struct {
		bits           uint32
		camera, bridge string
	}{
		{1441847, "online", "online"},
		{1441831, "online", "online"},
		{1441855, "online", "online"},
		{1179649, "offline", "online"}, // a bridge never streams
		{1179937, "offline password", "online"},
		{0, "status_zero", "status_zero"},
		{0x10000, "status_invalid", "status_invalid"},
		{1441847 | 0x10000, "status_invalid", "status_invalid"},
		{0x100, "off", "off"},
		{0x20000, "internet-offline", "internet-offline"},
		{0x20000 | 0x40000, "internet-offline", "internet-offline"},
		{0x40000 | 0x100000, "off", "off"},
		{0x20000 | 0x100000 | 0x40000 | 0x100, "online", "online"},
		{0xfffeffff, "online", "online"},
		{0xffffffff, "status_invalid", "status_invalid"},
	} {
		for bridge, want := range map[bool]string{false: c.camera, true: c.bridge} {
			r := Read(c.bits, bridge)
			got := r.Condition.String()
			if r.Condition == Unknown {
				got = r.Why.String()
			}
			if r.Password {
				got += " password"
			}
			if got != want {
				t.Errorf("Read(%#x, bridge %t) = %s, want %s", c.bits, bridge, got, want)
			}
		}
	}
}

// TestTimes proves rules T1 and T2 at their edges.
func TestTimes(t *testing.T) {
	const now = 1_772_366_400_000
	const week = 7 * 24 * hour
	for _, c := range []struct {
		said, want int64
		marked     bool
	}{
		{now, now, false},
		{now - 1, now - 1, false},
		{now + 1, now, false},
		{now + 10_000, now, false},
		{now + 10_001, now, true},
		{MaxTime, now, true},
		{now - week, now - week, false},
		{now - week - 1, now, true},
		{0, now, true},
		{-1, now, true},
	} {
		if got, marked := OccurTime(c.said, now); got != c.want || marked != c.marked {
			t.Errorf("OccurTime(now%+d) = now%+d, %t; want now%+d, %t", c.said-now, got-now, marked, c.want-now, c.marked)
		}
	}
	for _, c := range []struct {
		original int64
		kept     bool
		want     int64
	}{
		{0, true, now},
		{now - 5, true, now - 5},
		{now - 5, false, now},
		{now, true, now},
		{now + 1, true, now},
		{-3, true, now},
	} {
		if got := ReceiveTime(c.original, now, c.kept); got != c.want {
			t.Errorf("ReceiveTime(now%+d, %t) = now%+d, want now%+d", c.original-now, c.kept, got-now, c.want-now)
		}
	}
}

// TestDeadline proves rule T4 part by part.
func TestDeadline(t *testing.T) {
	r := Rules{Offline: 300 * time.Second, InternetOffline: 20 * time.Second}
	for _, c := range []struct {
		name                        string
		condition                   Condition
		since, started, clock, want int64
	}{
		{"since + hold", Offline, 0, 1000, 1000, 300_000},
		{"started + 60 s", Offline, 0, 250_000, 250_000, 310_000},
		{"started + a hold below 60 s", InternetOffline, 0, 15_000, 15_000, 35_000},
		{"the clock", InternetOffline, 0, 1000, 90_000, 90_000},
	} {
		got := r.deadline(Candidate{Condition: c.condition, Since: c.since, Started: c.started}, c.clock)
		if got != c.want {
			t.Errorf("%s: %d, want %d", c.name, got, c.want)
		}
	}
}

// TestNewer proves rule O1 at its edges, and that the reason is the part of the
// rule that decided.
func TestNewer(t *testing.T) {
	s := func(run, sequence uint64, occur, receive int64, c Condition) Sample {
		return Sample{Run: run, Sequence: sequence, Occur: occur, Receive: receive, Condition: c}
	}
	for _, c := range []struct {
		name       string
		last, next Sample
		why        Reason // 0: newer
	}{
		{"the first", Sample{}, s(0, 0, 0, 0, Offline), 0},
		{"higher sequence, earlier", s(1, 5, 9000, 9000, Offline), s(1, 6, 1000, 9000, Online), 0},
		{"equal sequence, later", s(1, 5, 1000, 1000, Offline), s(1, 5, 9000, 90_000, Online), StaleRepeat},
		{"restarted", s(1, 5, 1000, 1000, Offline), s(1, 1, 1001, 61_001, Online), 0},
		{"received 60 s later", s(1, 5, 1000, 1000, Offline), s(1, 1, 1001, 61_000, Online), StaleSequence},
		{"lower, occurred at once", s(1, 5, 1000, 1000, Offline), s(1, 1, 1000, 61_001, Online), StaleSequence},
		{"from before the restart", s(1, 1, 1001, 61_001, Offline), s(1, 5, 1000, 1000, Online), StaleSequence},
		{"no sequence, later", s(1, 5, 1000, 1000, Offline), s(1, 0, 1001, 1001, Online), 0},
		{"no sequence, earlier, received long after", s(1, 0, 1000, 1000, Offline), s(1, 5, 999, 90_000, Online), StaleOccur},
		{"other run, received 60 s later", s(1, 0, 2000, 2000, Offline), s(2, 0, 1999, 62_000, Online), StaleOccur},
		{"other run, received more than 60 s later, but late", s(1, 0, 2001, 2000, Offline), s(2, 0, 2000, 62_001, Online), StaleOccur},
		{"other run, just not late", s(1, 0, 2005, 2005, Offline), s(2, 0, 2006, 62_006, Online), 0},
		{"other run, occurred 60 s before its receipt", s(1, 0, 9000, 9000, Offline), s(2, 0, 9001, 69_001, Online), 0},
		{"occurred before, received 61 s later in time", s(1, 0, 9000, 9000, Offline), s(2, 0, 10_000, 70_000, Online), 0},
		{"unnamed, the clock behind", s(0, 0, 50_000, 9000, Offline), s(0, 0, 49_000, 70_000, Online), 0},
		{"unnamed, received 60 s later, the clock behind", s(0, 0, 50_000, 9000, Offline), s(0, 0, 49_000, 69_000, Online), StaleOccur},
		{"unnamed, late by 60 s", s(0, 0, 50_000, 9000, Offline), s(0, 0, 49_000, 109_000, Online), 0},
		{"unnamed, late by more", s(0, 0, 50_000, 9000, Offline), s(0, 0, 49_000, 109_001, Online), StaleOccur},
		{"received long before", s(1, 0, 90_000, 90_000, Offline), s(2, 0, 29_000, 29_000, Online), StaleReceive},
		{"received long before, but it occurred later", s(1, 0, 29_000, 89_000, Offline), s(2, 0, 28_999, 29_000, Online), StaleOccur},
		{"received long before what is late", s(1, 0, 28_000, 89_001, Offline), s(2, 0, 28_500, 28_500, Online), 0},
		{"tie, Online comes", s(1, 0, 5, 5, Offline), s(2, 0, 5, 6, Online), 0},
		{"tie, Online was", s(1, 0, 5, 5, Online), s(2, 0, 5, 6, Offline), StaleTie},
		{"tie, Off against Online", s(1, 0, 5, 5, Online), s(1, 0, 5, 6, Off), StaleTie},
		{"tie, Online again", s(1, 0, 5, 5, Online), s(1, 0, 5, 6, Online), 0},
		{"tie of two outages", s(1, 0, 5, 5, Offline), s(1, 0, 5, 6, InternetOffline), 0},
	} {
		newer, why := Newer(c.last, c.next)
		if why != c.why || newer != (c.why == 0) {
			t.Errorf("%s: newer %t, why %q; want %q", c.name, newer, why, c.why)
		}
	}
}

// TestNewerIsAnOrder proves that rule O1 asked of two samples either way round
// names the same one, unless they are equal where it decides.
func TestNewerIsAnOrder(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 1))
	sample := func() Sample {
		receive := r.Int64N(200_000)
		return Sample{
			Run: uint64(r.IntN(3)), Sequence: uint64(r.IntN(4)),
			Occur: max(0, receive-r.Int64N(100_000)), Receive: receive,
			Condition: Online + Condition(r.IntN(4)),
		}
	}
	for range 200_000 {
		a, b := sample(), sample()
		ab, why := Newer(a, b)
		ba, _ := Newer(b, a)
		if (why == 0) != ab {
			t.Fatalf("%+v after %+v: newer %t, why %q", b, a, ab, why)
		}
		tie := a.Occur == b.Occur || a.Run == b.Run && a.Sequence == b.Sequence
		if ab == ba && !tie {
			t.Fatalf("each is newer than the other, or neither: %+v and %+v", a, b)
		}
	}
}

// TestHourlyBlips proves that a day of outages of 60 s, one an hour, tells
// nobody anything (domain, 7.4).
func TestHourlyBlips(t *testing.T) {
	var script strings.Builder
	fmt.Fprintln(&script, "+0s online")
	for h := 1; h <= 24; h++ {
		fmt.Fprintf(&script, "+%dh offline\n+%dh60s online\n", h, h)
	}
	fmt.Fprintln(&script, "+30h tick")
	out := play(t, script.String())
	if strings.Contains(out, "due") || strings.Count(out, "=> withdrawn") != 24 {
		t.Errorf("want 24 withdrawn and none due:\n%s", out)
	}
}

// TestIDs proves that a notification's id is the same for the same, another for
// anything else, and made of the id alphabet. It pins the form: ids are stored
// and sent in mails.
func TestIDs(t *testing.T) {
	ids := map[string]string{}
	for _, c := range []struct {
		name string
		id   string
	}{
		{"plain", NotificationID("acme", "cam-1", OfflineType, 1000, "", "")},
		{"account", NotificationID("acm", "ecam-1", OfflineType, 1000, "", "")},
		{"device", NotificationID("acme", "cam-2", OfflineType, 1000, "", "")},
		{"type", NotificationID("acme", "cam-1", OnlineType, 1000, "", "")},
		{"since", NotificationID("acme", "cam-1", OfflineType, 1001, "", "")},
		{"region", NotificationID("acme", "cam-1", OfflineType, 1000, "door", "")},
		{"span", NotificationID("acme", "cam-1", OfflineType, 1000, "", "door")},
		{"outage", OutageID("acme", "cam-1", 1000)},
	} {
		if other, taken := ids[c.id]; taken {
			t.Errorf("%s and %s have the id %s", c.name, other, c.id)
		}
		ids[c.id] = c.name
		if len(c.id) != 23 || strings.Trim(c.id, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-") != "" {
			t.Errorf("%s: %q is no short id", c.name, c.id)
		}
	}
	if got, want := NotificationID("acme", "cam-1", OfflineType, 1000, "", ""), "nmI6lrs8C3wI3-DLKeZBaFA"; got != want {
		t.Errorf("the id of a notification changed: %s, was %s", got, want)
	}
	if got, want := OutageID("acme", "cam-1", 1000), "odedT06ctZlsippA-rj7RLg"; got != want {
		t.Errorf("the id of an outage changed: %s, was %s", got, want)
	}
}

// TestHashes proves that the stored hashes are what they were, and that a run
// without source or epoch is unnamed.
func TestHashes(t *testing.T) {
	for _, unnamed := range [][2]string{{"", ""}, {"a", ""}, {"", "1"}} {
		if RunOf(unnamed[0], unnamed[1]) != 0 {
			t.Errorf("run %q is named", unnamed)
		}
	}
	if RunOf("a", "11") == RunOf("a1", "1") {
		t.Error("two runs are one")
	}
	if SpanOf("a", "", 5) == SpanOf("a", "", 6) || SpanOf("a", "b", 5) != SpanOf("a", "b", 6) {
		t.Error("a span's occur time counts exactly where it has no id")
	}
	if got, want := RunOf("archiver-1", "7"), uint64(0x6b58ba2ea642ad3f); got != want {
		t.Errorf("the hash of a run changed: %#x, was %#x", got, want)
	}
	if got, want := SpanOf("door", "m1", 0), uint64(0x8190ac334caf8176); got != want {
		t.Errorf("the hash of a span changed: %#x, was %#x", got, want)
	}
}

// TestSpan proves that a remembered span gives back what it was made of, up to
// the last millisecond that a source can name.
func TestSpan(t *testing.T) {
	for _, occur := range []int64{0, 1, 1 << 32, 1_772_366_400_123, MaxTime} {
		const h = 0xfedc_ba98_7654_3210
		s := NewSpan(h, occur)
		if s.Occur() != occur || s.Hash() != h&(1<<48-1) {
			t.Errorf("%d: got %d, hash %#x", occur, s.Occur(), s.Hash())
		}
	}
}

// TestSize proves what a device costs (design: Scale, on paper).
func TestSize(t *testing.T) {
	if got := unsafe.Sizeof(State{}); got > 136 {
		t.Errorf("a state has %d bytes", got)
	}
	if got := unsafe.Sizeof(Span{}); got != 12 {
		t.Errorf("a span has %d bytes", got)
	}
}

// TestCheck proves that states which no Step can make are refused.
func TestCheck(t *testing.T) {
	good := State{
		Confirmed: Offline, Since: 100, Outage: 100,
		Last:      Sample{Run: 1, Sequence: 2, Occur: 500, Receive: 510, Condition: Online},
		Candidate: Candidate{Condition: Online, Since: 500, Receive: 510, Started: 520, Deadline: 95_500},
	}
	if err := good.Check(); err != nil {
		t.Fatalf("a good state: %v", err)
	}
	for name, spoil := range map[string]func(*State){
		"negative time":              func(s *State) { s.Since = -1 },
		"time beyond all":            func(s *State) { s.Candidate.Deadline = 3 * MaxTime },
		"off confirmed":              func(s *State) { s.Confirmed = Off },
		"no such condition":          func(s *State) { s.Confirmed = 9 },
		"no such last":               func(s *State) { s.Last.Condition = 9 },
		"last without a condition":   func(s *State) { s.Last.Condition = Unknown },
		"occurred after its receipt": func(s *State) { s.Last.Occur = 511 },
		"outage while online":        func(s *State) { s.Confirmed, s.Candidate = Online, Candidate{} },
		"since of unknown": func(s *State) {
			s.Confirmed, s.Outage, s.Candidate = Unknown, 0, Candidate{}
		},
		"password of another":      func(s *State) { s.Confirmed, s.Password = InternetOffline, true },
		"leftovers":                func(s *State) { s.Candidate.Condition = Unknown },
		"candidate off":            func(s *State) { s.Candidate.Condition = Off },
		"candidate is confirmed":   func(s *State) { s.Candidate.Condition = Offline },
		"online from online":       func(s *State) { s.Confirmed, s.Outage = Unknown, 0; s.Since = 0 },
		"candidate while off":      func(s *State) { s.Last.Condition = Off },
		"deadline before since":    func(s *State) { s.Candidate.Deadline = 499 },
		"started before receipt":   func(s *State) { s.Candidate.Started = 509 },
		"password of an online":    func(s *State) { s.Candidate.Password = true },
		"received before it began": func(s *State) { s.Candidate.Receive = 499 },
	} {
		s := good
		spoil(&s)
		if err := s.Check(); err == nil {
			t.Errorf("%s: accepted: %+v", name, s)
		}
	}
}

// TestWakeWithoutHold proves that a broken invariant of our own panics with the
// state.
func TestWakeWithoutHold(t *testing.T) {
	defer func() {
		if r := recover(); r == nil || !strings.Contains(fmt.Sprint(r), "Confirmed:online") {
			t.Errorf("panic %v, want one that shows the state", r)
		}
	}()
	DefaultRules.Step(State{Confirmed: Online, Since: 5}, Input{Kind: Wake, At: 10}, nil)
}

// FuzzStep proves of any inputs, in any order of receipt, that the machine
// never panics, keeps its states possible, says nothing twice as due in one
// outage, and does nothing on the same input again.
func FuzzStep(f *testing.F) {
	f.Add([]byte("offline, then a while, then online again, and so on, and on"))
	f.Add(make([]byte, 64))
	f.Fuzz(func(t *testing.T, script []byte) {
		rules := DefaultRules
		var s State
		var spans []Span
		clock := int64(1_772_366_400_000)
		var effects []Effect
		run := func(in Input) {
			s, effects = rules.Step(s, in, effects[:0])
			if err := s.Check(); err != nil {
				t.Fatalf("%v: %+v", err, s)
			}
			for _, e := range effects {
				switch e.Kind {
				case Remember:
					spans = Remembered(spans, e.Span)
				case Notify:
					n := e.Notice
					if n.Since > n.Decide || n.Decide > in.At || n.Since > n.Receive || n.Stage == Pending && n.Deadline < in.At {
						t.Fatalf("at %d: %+v", in.At, n)
					}
				}
			}
		}
		fire := func() {
			if at, ok := s.Due(); ok && at <= clock {
				run(Input{Kind: Wake, At: clock})
			}
			if at, ok := s.Due(); ok && at <= clock {
				t.Fatalf("still due at %d: %+v", clock, s)
			}
		}
		for len(script) >= 8 {
			word := binary.LittleEndian.Uint64(script)
			script = script[8:]
			bits := func(n int) int64 {
				v := word & (1<<n - 1)
				word >>= n
				return int64(v)
			}
			clock += bits(9) * 1000
			in := Input{At: clock}
			in.Receive = ReceiveTime(clock-bits(8)*1000, clock, bits(2) == 0)
			in.Occur, in.Corrected = OccurTime(in.Receive+(bits(10)-900)*1000, in.Receive)
			in.Kind = Status
			in.Run, in.Sequence = uint64(bits(2)), uint64(bits(4))
			switch kind := bits(4); {
			case kind < 5:
				in.Reading.Condition = Condition(kind)
				in.Reading.Why = StatusUnknown
			case kind < 12:
				in.Reading = Read(uint32(bits(21)), kind == 11)
			case kind < 14:
				in.Kind = MotionStart
				in.Span, in.Spans = NewSpan(uint64(bits(3)), in.Occur), spans
			case kind == 14:
				in = Input{Kind: Forget, At: clock}
			default:
				rules = Rules{time.Duration(bits(9)) * time.Second, time.Duration(bits(9)) * time.Second, 0}
				continue
			}
			fire()
			run(in)
			fire()
			before := s
			if in.Kind == MotionStart {
				in.Spans = spans
			}
			run(in)
			for _, e := range effects {
				if e.Kind != Count {
					t.Fatalf("the same input again: %+v", e)
				}
			}
			if before.Candidate != s.Candidate || before.Confirmed != s.Confirmed || before.Outage != s.Outage {
				t.Fatalf("the same input again:\n%+v\n%+v", before, s)
			}
		}
	})
}
