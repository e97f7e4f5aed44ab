package ledger_test

import (
	"bytes"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/twmb/franz-go/pkg/kgo"
	"go.opentelemetry.io/otel/trace"
	tracenoop "go.opentelemetry.io/otel/trace/noop"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	deliveryv1 "github.com/tocsin/tocsin/proto/gen/tocsin/delivery/v1"
	notificationv1 "github.com/tocsin/tocsin/proto/gen/tocsin/notification/v1"
	outboxv1 "github.com/tocsin/tocsin/proto/gen/tocsin/outbox/v1"
	statev1 "github.com/tocsin/tocsin/proto/gen/tocsin/state/v1"
	"github.com/tocsin/tocsin/services/gateway/internal/account"
	"github.com/tocsin/tocsin/services/gateway/internal/ledger"
	"github.com/tocsin/tocsin/services/gateway/internal/schedule"
	"github.com/tocsin/tocsin/services/internal/kafka"
	"github.com/tocsin/tocsin/services/internal/topic"
)

var start = time.Date(2026, 3, 2, 12, 0, 0, 0, time.UTC)

// fakeSettings gives every account the same users.
type fakeSettings struct{ users []string }

func (f fakeSettings) Apply(*kgo.Record) error { return nil }

func (f fakeSettings) Account(string) *account.Settings {
	s := &account.Settings{Known: true, Active: true, StatusMails: true}
	for _, id := range f.users {
		s.Users = append(s.Users, account.User{
			ID: id, Address: id + "@acme.test", Enabled: true, Admin: true,
			Levels: account.Low | account.System, Windows: schedule.Always(),
		})
	}
	return s
}

type fakeObserver struct{ ignored []account.Ignored }

func (f *fakeObserver) Decided(string, *account.Decided, trace.SpanContext) {}
func (f *fakeObserver) Attempted(string, *account.Attempted)                {}
func (f *fakeObserver) Ignored(why account.Ignored)                         { f.ignored = append(f.ignored, why) }
func (f *fakeObserver) Holds(int32, ledger.Held)                            {}
func (f *fakeObserver) Closed(int32)                                        {}

// bench is a partition and the runtime around it in small: a poll of records
// is stepped, its effects are taken, and then committed or aborted.
type bench struct {
	t       testing.TB
	opts    ledger.Options
	p       *ledger.Partition
	offset  int64
	sent    []sent
	topics  map[string][]byte // state topics, compacted: "topic key" to value
	written []*kgo.Record
	ignored *fakeObserver
}

type sent struct {
	mail          *outboxv1.Mail
	lease, expire time.Time
}

func newBench(t testing.TB, users ...string) *bench {
	b := &bench{t: t, topics: map[string][]byte{}, ignored: &fakeObserver{}}
	b.opts = ledger.Options{
		Topics:   topic.New("tocsin."),
		Rules:    account.Default(),
		Limits:   ledger.Limits{AccountFlying: 2, Flying: 5, AccountDecisions: 100, Decisions: 1000},
		Settings: func() ledger.Settings { return fakeSettings{users} },
		Send: func(m *outboxv1.Mail, lease, expire time.Time) {
			b.sent = append(b.sent, sent{m, lease, expire})
		},
		Tracer:  tracenoop.NewTracerProvider().Tracer(""),
		Observe: b.ignored,
	}
	b.open()
	return b
}

// open makes the partition anew from what the state topics hold.
func (b *bench) open() {
	b.p = ledger.Open(b.opts, 0, 1)
	for _, at := range slices.Sorted(maps.Keys(b.topics)) {
		name, key, _ := strings.Cut(at, " ")
		if err := b.p.Restore(&kgo.Record{Topic: name, Key: []byte(key), Value: b.topics[at]}); err != nil {
			b.t.Fatal(err)
		}
	}
	b.anchor(start)
}

// anchor says that the log's clock reads log now.
func (b *bench) anchor(log time.Time) { b.p.Anchor(log, time.Now()) }

// step takes records at their times; a nil value and key is a tick.
func (b *bench) step(recs ...*kgo.Record) {
	for _, rec := range recs {
		b.p.Advance(rec.Timestamp)
		if rec.Key == nil {
			b.p.Tick(rec.Timestamp)
		} else if err := b.p.Handle(rec, rec.Timestamp); err != nil {
			b.t.Fatal(err)
		}
		b.p.Advance(rec.Timestamp)
	}
}

// poll steps and commits; what was written is returned and kept.
func (b *bench) poll(recs ...*kgo.Record) []*kgo.Record {
	b.step(recs...)
	out := b.p.Effects(nil)
	b.p.Commit()
	for _, rec := range out {
		at := rec.Topic + " " + string(rec.Key)
		switch {
		case rec.Topic == b.opts.Topics.Deliveries.Name:
		case rec.Value == nil:
			delete(b.topics, at)
		default:
			b.topics[at] = rec.Value
		}
	}
	b.written = append(b.written, out...)
	return out
}

func (b *bench) record(at time.Time, kind, key string, m interface{ MarshalVT() ([]byte, error) }) *kgo.Record {
	value, err := m.MarshalVT()
	if err != nil {
		b.t.Fatal(err)
	}
	b.offset++
	return &kgo.Record{
		Topic: b.opts.Topics.Notifications.Name, Offset: b.offset, Timestamp: at, Key: []byte(key), Value: value,
		Headers: []kgo.RecordHeader{
			{Key: kafka.HeaderType, Value: []byte(kind)},
			{Key: kafka.HeaderTraceParent, Value: []byte("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")},
		},
	}
}

func (b *bench) tick(at time.Time) *kgo.Record { b.offset++; return &kgo.Record{Timestamp: at} }

func (b *bench) notify(at time.Time, m *notificationv1.Notification) *kgo.Record {
	m.Stage = max(m.Stage, notificationv1.Notification_DUE)
	if m.SinceTime == nil {
		m.SinceTime = timestamppb.New(at)
	}
	return b.record(at, ledger.TypeNotification, m.AccountId+"/"+m.DeviceId, m)
}

func (b *bench) result(at time.Time, m *outboxv1.Mail, o outboxv1.Result_Outcome) *kgo.Record {
	return b.record(at, ledger.TypeResult, m.GetAccountId(), &outboxv1.Result{
		AccountId: m.GetAccountId(), MailId: m.GetMailId(), Attempt: m.GetAttempt(), Outcome: o, EndTime: timestamppb.New(at),
	})
}

// show is records in words.
func show(t testing.TB, recs []*kgo.Record) []string {
	var lines []string
	for _, rec := range recs {
		line := strings.TrimPrefix(rec.Topic, "tocsin.") + " " + string(rec.Key) + " "
		var m proto.Message
		switch kafka.Header(rec, kafka.HeaderType) {
		case ledger.TypeMail:
			m = &outboxv1.Mail{}
		case ledger.TypeAccountPart:
			m = &statev1.AccountPart{}
		case ledger.TypeDecision:
			m = &deliveryv1.Decision{}
		case ledger.TypeMailOutcome:
			m = &deliveryv1.MailOutcome{}
		default:
			lines = append(lines, line+"gone")
			continue
		}
		if err := proto.Unmarshal(rec.Value, m); err != nil {
			t.Fatal(err)
		}
		lines = append(lines, line+strings.ReplaceAll(protojson.MarshalOptions{}.Format(m), `": `, `":`)) // its spaces are random
	}
	return lines
}

// Proves the way of a notification: kept until a tick decides it; the decision,
// the mail and the intent in one batch, the attempt handed on after it with a
// lease by our clock; the result settles the mail and leaves nothing behind
// but the outage.
func TestNotificationToSent(t *testing.T) {
	b := newBench(t, "ann")
	at := start.Add(300 * time.Second)
	b.anchor(at)
	out := b.poll(b.notify(at, &notificationv1.Notification{
		NotificationId: "n1", AccountId: "a", DeviceId: "cam", Type: notificationv1.Notification_OFFLINE, OutageId: "o1",
		SinceTime: timestamppb.New(start), Hold: durationpb.New(290 * time.Second), EventId: "e1",
	}))
	if len(out) != 1 || string(out[0].Key) != "a/undecided/1" {
		t.Fatalf("before the tick: %v", show(t, out))
	}
	if due, ok := b.p.Due(); !ok || due.After(at) {
		t.Errorf("with something undecided a tick is wanted at %v (%v)", due, ok)
	}

	before := time.Now()
	b.step(b.tick(at.Add(5 * time.Millisecond)))
	out = b.p.Effects(nil)
	if len(b.sent) > 0 {
		t.Fatal("an attempt was handed on before its intent was committed")
	}
	b.p.Commit()
	byKey := map[string]string{}
	for i, line := range show(t, out) {
		byKey[string(out[i].Key)] = line
	}
	for key, want := range map[string][]string{
		"a/n1":                             {"deliveries", `"reason":"MAILED"`, `"userIds":["ann"]`, `"alertDelay":"300.005s"`, `"alertDelayWithoutHold":"10.005s"`, `"traceId":"0af7651916cd43dd8448eb211c80319c"`, `"eventId":"e1"`},
		"a/undecided/1":                    {"account-state", "gone"},
		"a/" + account.MailID("n1", "ann"): {"outbox", `"status":"ATTEMPTING"`, `"attempt":1`, `"address":"ann@acme.test"`, `"eventId":"e1"`, `"traceparent":"00-0af7651916cd43dd8448eb211c80319c-`},
		"a/outage/o1":                      {"account-state", `"userId":"ann"`},
		"a/recent/":                        {"account-state"},
	} {
		for _, part := range want {
			if !strings.Contains(byKey[key], part) {
				t.Errorf("record %s lacks %s: %s", key, part, byKey[key])
			}
		}
	}
	if len(out) != 5 {
		t.Errorf("%d records: %v", len(out), slices.Sorted(maps.Keys(byKey)))
	}
	if len(b.sent) != 1 || b.sent[0].lease.Before(before.Add(59*time.Second)) || b.sent[0].lease.After(time.Now().Add(60*time.Second+5*time.Millisecond)) {
		t.Fatalf("handed on: %v", b.sent)
	}
	if got, want := b.sent[0].expire.Sub(b.sent[0].lease), b.opts.Rules.StatusAge-b.opts.Rules.Lease; got != want {
		t.Errorf("its time ends %s after its lease, want %s", got, want)
	}

	out = b.poll(b.result(at.Add(time.Second), b.sent[0].mail, outboxv1.Result_SENT))
	lines := strings.Join(show(t, out), "\n")
	for _, want := range []string{`"reason":"SENT"`, `"settled":true`, `"mailDelay":"301s"`, `"mailDelayWithoutHold":"11s"`, "outbox a/" + account.MailID("n1", "ann") + " gone", `"status":"TOLD"`} {
		if !strings.Contains(lines, want) {
			t.Errorf("after the result there is no %s in\n%s", want, lines)
		}
	}
	if _, ok := b.p.Due(); ok {
		t.Error("with all settled a tick is wanted")
	}
}

// Proves that nothing is kept of a notification that is read and decided in one
// batch, but what comes of it.
func TestOneBatch(t *testing.T) {
	b := newBench(t)
	out := b.poll(b.notify(start, alert("a", "n1")), b.tick(start))
	for _, rec := range out {
		if strings.Contains(string(rec.Key), "undecided") {
			t.Errorf("written and taken away in one batch: %s", rec.Key)
		}
	}
	if len(out) != 2 {
		t.Errorf("records: %v", show(t, out))
	}
}

func alert(account, id string) *notificationv1.Notification {
	return &notificationv1.Notification{NotificationId: id, AccountId: account, DeviceId: "cam", Type: notificationv1.Notification_ALERT}
}

// life is a random log: a flow of records of a few accounts, in polls.
type life struct {
	*rand.Rand
	at     time.Time
	serial int
	outage map[string]int
}

// poll is what the log has next, given what was handed to the mailer so far.
func (l *life) poll(b *bench) []*kgo.Record {
	var recs []*kgo.Record
	for range 1 + l.IntN(6) {
		l.at = l.at.Add(time.Duration([]int{0, 1, 50, 3_000, 20_000, 70_000}[l.IntN(6)]) * time.Millisecond)
		id := fmt.Sprint("acc", l.IntN(3))
		switch n := l.IntN(10); {
		case n < 3:
			l.serial++
			m := alert(id, fmt.Sprint("n", l.serial))
			if n > 0 {
				m.DeviceId = fmt.Sprint("cam", l.IntN(2))
				where := id + m.DeviceId
				m.Type = []notificationv1.Notification_Type{notificationv1.Notification_OFFLINE, notificationv1.Notification_ONLINE}[l.IntN(2)]
				if m.Type == notificationv1.Notification_OFFLINE {
					l.outage[where]++
				}
				m.OutageId = fmt.Sprint("o-", where, l.outage[where])
			}
			recs = append(recs, b.notify(l.at, m))
		case n < 6:
			recs = append(recs, b.tick(l.at))
		case n < 9 && len(b.sent) > 0:
			m := b.sent[len(b.sent)-1-l.IntN(min(len(b.sent), 5))].mail
			recs = append(recs, b.result(l.at, m, 1+outboxv1.Result_Outcome(l.IntN(4))))
		case len(b.sent) > 0:
			m := b.sent[len(b.sent)-1-l.IntN(min(len(b.sent), 3))].mail
			recs = append(recs, b.record(l.at, ledger.TypeRenewal, m.GetAccountId(), &outboxv1.Renewal{
				AccountId: m.GetAccountId(), MailId: m.GetMailId(), Attempt: m.GetAttempt()}))
		}
	}
	return recs
}

func newLife(seed uint64) *life {
	return &life{Rand: rand.New(rand.NewPCG(seed, 7)), at: start, outage: map[string]int{}}
}

// Proves that a crash between any two polls, or an abort of any of them, shows
// in nothing that is written: the life of a partition that is restored from
// its topics after each poll, and that of one whose polls are all aborted once
// and read again, write what an undisturbed one writes.
func TestRestoreAndAbortLeaveNoTrace(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	for round := range uint64(25) {
		lives := []*life{newLife(seed + round), newLife(seed + round), newLife(seed + round)}
		benches := []*bench{newBench(t, "ann", "bob"), newBench(t, "ann", "bob"), newBench(t, "ann", "bob")}
		for poll := range 40 {
			var wrote [3][]*kgo.Record
			for i, b := range benches {
				recs := lives[i].poll(b)
				b.anchor(lives[i].at)
				if i == 2 {
					b.step(recs...)
					if poll%2 == 0 {
						b.p.Effects(nil)
					}
					b.p.Abort()
				}
				wrote[i] = b.poll(recs...)
				if i == 1 {
					b.open()
				}
			}
			for i, what := range []string{"", "restored after each poll", "aborted once"} {
				if !slices.EqualFunc(wrote[0], wrote[i], same) {
					diff := cmp.Diff(show(t, wrote[0]), show(t, wrote[i]))
					t.Fatalf("round %d, poll %d (-undisturbed +%s):\n%s", round, poll, what, diff)
				}
			}
		}
		if diff := cmp.Diff(benches[0].topics, benches[2].topics); diff != "" {
			t.Fatalf("round %d: topics differ (-undisturbed +aborted):\n%s", round, diff)
		}
	}
}

func same(a, b *kgo.Record) bool {
	return a.Topic == b.Topic && bytes.Equal(a.Key, b.Key) && bytes.Equal(a.Value, b.Value)
}

// Proves that an aborted batch hands nothing to the mailer.
func TestAbortSendsNothing(t *testing.T) {
	b := newBench(t, "ann")
	b.step(b.notify(start, alert("a", "n1")), b.tick(start))
	b.p.Effects(nil)
	b.p.Abort()
	b.poll(b.tick(start))
	if len(b.sent) > 0 {
		t.Errorf("sent %v", b.sent)
	}
}

// Proves fairness: an account with a thousand mails, none of which comes back,
// has its share of attempts and no more, the others' mails go at once, and the
// partition's bound holds.
func TestShares(t *testing.T) {
	b := newBench(t, "ann")
	var recs []*kgo.Record
	for i := range 1000 {
		recs = append(recs, b.notify(start, alert("big", fmt.Sprint("n", i))))
	}
	b.poll(append(recs, b.tick(start))...)
	flying := func(id string) (n int) {
		for _, s := range b.sent {
			if s.mail.GetAccountId() == id {
				n++
			}
		}
		return n
	}
	if n := flying("big"); n != 2 {
		t.Fatalf("%d attempts of one account, its share is 2", n)
	}
	for i := range 10 {
		at := start.Add(time.Duration(i) * time.Second)
		b.anchor(at)
		small := fmt.Sprint("small", i%4)
		b.poll(b.notify(at, alert(small, fmt.Sprint("s", i))))
		b.poll(b.tick(at))
		want := min(2+i+1, 5)
		if n := len(b.sent); n != want {
			t.Fatalf("after %d mails of others %d attempts are under way, want %d", i+1, n, want)
		}
	}
	// One comes back: an account with none under way is next, not the big one.
	b.anchor(start.Add(11 * time.Second))
	b.poll(b.result(start.Add(11*time.Second), b.sent[2].mail, outboxv1.Result_SENT))
	if last := b.sent[len(b.sent)-1].mail.GetAccountId(); last != "small3" {
		t.Errorf("next was %s, want small3, which has none under way", last)
	}
}

// Proves that decisions are shared too: a tick decides so many of an account
// and goes on with the others; the rest has the next tick, which is wanted at once.
func TestDecisionsAreShared(t *testing.T) {
	b := newBench(t)
	var recs []*kgo.Record
	for i := range 250 {
		recs = append(recs, b.notify(start, alert("big", fmt.Sprint("n", i))))
	}
	recs = append(recs, b.notify(start, alert("small", "s")))
	b.poll(recs...)
	for tick, want := range []map[string]int{{"big": 100, "small": 1}, {"big": 100}, {"big": 50}} {
		at := start.Add(time.Duration(tick) * time.Second)
		if due, ok := b.p.Due(); !ok || due.After(at) {
			t.Errorf("tick %d is wanted at %v (%v)", tick, due, ok)
		}
		got := map[string]int{}
		for _, rec := range b.poll(b.tick(at)) {
			if rec.Topic == b.opts.Topics.Deliveries.Name {
				id, _, _ := strings.Cut(string(rec.Key), "/")
				got[id]++
			}
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("tick %d (-want +got):\n%s", tick, diff)
		}
	}
	if _, ok := b.p.Due(); ok {
		t.Error("with all decided a tick is wanted")
	}
}

// Proves that no attempt begins on an old stretch of the log, where its lease
// would end some records on, before it was ever made.
func TestNoAttemptWhileBehind(t *testing.T) {
	b := newBench(t, "ann")
	b.p = ledger.Open(b.opts, 0, 1) // nothing is known of the log's clock yet
	b.poll(b.notify(start, alert("a", "n1")), b.tick(start))
	if len(b.sent) > 0 {
		t.Fatal("an attempt began before the log's clock was known")
	}
	b.anchor(start.Add(3 * time.Hour)) // the tick that was sent now was read... of three hours later
	out := b.poll(b.tick(start.Add(time.Minute)))
	if len(b.sent) > 0 {
		t.Fatalf("an attempt began three hours behind: %v", show(t, out))
	}
	if due, ok := b.p.Due(); !ok || due.After(start.Add(time.Minute)) {
		t.Errorf("with a mail to try a tick is wanted at %v (%v)", due, ok)
	}
	b.p.Anchor(start.Add(2*time.Minute), time.Now().Add(-10*time.Second))
	b.poll(b.tick(start.Add(2*time.Minute + 5*time.Second)))
	if len(b.sent) != 1 {
		t.Fatal("no attempt began at the log's end")
	}
	// Sent 10 s ago and 5 s of the log behind: 55 s are left at most.
	if left := time.Until(b.sent[0].lease); left > 55*time.Second || left < 54*time.Second {
		t.Errorf("%s of the lease are left, want 55 s", left)
	}
}

// Proves when ticks are wanted: at once for something undecided, then at the
// end of a lease, at the time of a retry if there is room for it, and at the
// end of a mail's life.
func TestDue(t *testing.T) {
	b := newBench(t, "ann")
	wants := func(what string, want time.Time) {
		t.Helper()
		if due, ok := b.p.Due(); !ok || !due.Equal(want) {
			t.Errorf("%s a tick is wanted at %v (%v), want %v", what, due, ok, want)
		}
	}
	if due, ok := b.p.Due(); ok {
		t.Errorf("with nothing there a tick is wanted at %v", due)
	}
	b.poll(b.notify(start, alert("a", "n1")))
	wants("with something undecided", start)
	b.poll(b.tick(start))
	wants("with an attempt under way", start.Add(time.Minute))
	b.poll(b.result(start.Add(time.Second), b.sent[0].mail, outboxv1.Result_RETRYING))
	var next time.Time
	for at, value := range b.topics {
		var m outboxv1.Mail
		if strings.HasPrefix(at, b.opts.Topics.Outbox.Name) && proto.Unmarshal(value, &m) == nil {
			next = m.GetNextTime().AsTime()
		}
	}
	wants("with a retry to come", next)

	// Four others fill the partition: the retry has to wait for one of them.
	b.anchor(start.Add(2 * time.Second))
	var recs []*kgo.Record
	for i := range 5 {
		recs = append(recs, b.notify(start.Add(2*time.Second), alert(fmt.Sprint("other", i), fmt.Sprint("m", i))))
	}
	b.poll(append(recs, b.tick(start.Add(2*time.Second)))...)
	wants("with no room", start.Add(62*time.Second))
}
