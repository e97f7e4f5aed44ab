package ledger_test

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	notificationv1 "github.com/tocsin/tocsin/proto/gen/tocsin/notification/v1"
	outboxv1 "github.com/tocsin/tocsin/proto/gen/tocsin/outbox/v1"
	statev1 "github.com/tocsin/tocsin/proto/gen/tocsin/state/v1"
	"github.com/tocsin/tocsin/services/gateway/internal/ledger"
	"github.com/tocsin/tocsin/services/internal/kafka"
)

func encoded(t testing.TB, m proto.Message) []byte {
	t.Helper()
	value, err := proto.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	return value
}

// Proves that a record the gateway cannot believe is refused with a reason, and
// that the partition is as before.
func TestRecordsThatAreRefused(t *testing.T) {
	b := newBench(t, "ann")
	good := func(change func(*notificationv1.Notification)) *kgo.Record {
		m := &notificationv1.Notification{
			NotificationId: "n1", AccountId: "a", DeviceId: "cam", Type: notificationv1.Notification_OFFLINE,
			Stage: notificationv1.Notification_DUE, OutageId: "o1", SinceTime: timestamppb.New(start),
		}
		change(m)
		return b.record(start, ledger.TypeNotification, "a/cam", m)
	}
	nothing := func(*notificationv1.Notification) {}
	with := func(rec *kgo.Record, change func(*kgo.Record)) *kgo.Record { change(rec); return rec }
	fact := func(key string, m *outboxv1.Result) *kgo.Record { return b.record(start, ledger.TypeResult, key, m) }
	for _, tc := range []struct {
		name string
		rec  *kgo.Record
		says string
	}{
		{"no key", with(good(nothing), func(r *kgo.Record) { r.Key = nil }), "has no key"},
		{"no type", with(good(nothing), func(r *kgo.Record) { r.Headers = nil }), `no header "type"`},
		{"another type", with(good(nothing), func(r *kgo.Record) { r.Headers[0].Value = []byte("tocsin.event.v1.DeviceEvent") }), "does not know"},
		{"no message", with(good(nothing), func(r *kgo.Record) { r.Value = []byte{0xff, 0xff} }), "decode notification"},
		{"null", with(good(nothing), func(r *kgo.Record) { r.Value = nil }), "notification_id"},
		{"another device", with(good(nothing), func(r *kgo.Record) { r.Key = []byte("a/cam2") }), "is not that of the notification's device"},
		{"no id", good(func(m *notificationv1.Notification) { m.NotificationId = "" }), "notification_id"},
		{"no account", good(func(m *notificationv1.Notification) { m.AccountId = "" }), "account_id"},
		{"a slash in the device", good(func(m *notificationv1.Notification) { m.DeviceId = "a/b" }), "device_id"},
		{"no type of ours", good(func(m *notificationv1.Notification) { m.Type = 77 }), "type: 77"},
		{"no stage of ours", good(func(m *notificationv1.Notification) { m.Stage = 77 }), "stage: 77"},
		{"no since", good(func(m *notificationv1.Notification) { m.SinceTime = nil }), "since_time"},
		{"no outage", good(func(m *notificationv1.Notification) { m.OutageId = "" }), "outage_id"},
		{"result of another account", fact("b", &outboxv1.Result{AccountId: "a", MailId: "m", Attempt: 1, Outcome: 1}), "is not its account"},
		{"result of no mail", fact("a", &outboxv1.Result{AccountId: "a", Attempt: 1, Outcome: 1}), "mail_id"},
		{"result of no attempt", fact("a", &outboxv1.Result{AccountId: "a", MailId: "m", Outcome: 1}), "attempt"},
		{"result without outcome", fact("a", &outboxv1.Result{AccountId: "a", MailId: "m", Attempt: 1}), "outcome"},
		{"renewal of no attempt", b.record(start, ledger.TypeRenewal, "a", &outboxv1.Renewal{AccountId: "a", MailId: "m"}), "attempt"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			err := b.p.Handle(tc.rec, start)
			if err == nil || !strings.Contains(err.Error(), tc.says) {
				t.Errorf("error %v, want one that says %q", err, tc.says)
			}
		})
	}
	if out := b.p.Effects(nil); len(out) > 0 {
		t.Errorf("refused records left %v", show(t, out))
	}
	stray := ledger.Open(b.opts, kafka.PartitionFor("a", 7)%6+1, 7)
	if home := kafka.PartitionFor("a", 7); home == kafka.PartitionFor("a", 7)%6+1 {
		t.Fatal("choose another account")
	}
	if err := stray.Handle(good(nothing), start); err == nil || !strings.Contains(err.Error(), "hashes otherwise") {
		t.Errorf("a stray record: %v", err)
	}
}

// Proves that a fact about a mail that is not there is no garbage: it is
// counted and changes nothing.
func TestUnknownFactIsCounted(t *testing.T) {
	b := newBench(t, "ann")
	out := b.poll(b.record(start, ledger.TypeResult, "a", &outboxv1.Result{AccountId: "a", MailId: "m", Attempt: 1, Outcome: outboxv1.Result_SENT}))
	if len(out) > 0 || len(b.ignored.ignored) != 1 {
		t.Errorf("records %v, ignored %v", show(t, out), b.ignored.ignored)
	}
}

// Proves that stored bytes are checked, never trusted: what a machine could not
// have written stops the restore and says which key is wrong.
func TestRestoreChecks(t *testing.T) {
	b := newBench(t, "ann")
	b.poll(b.notify(start, alert("a", "n1")), b.tick(start), b.notify(start, alert("a", "n2")))
	var mail outboxv1.Mail
	for at, value := range b.topics {
		if strings.HasPrefix(at, b.opts.Topics.Outbox.Name) {
			if err := proto.Unmarshal(value, &mail); err != nil {
				t.Fatal(err)
			}
		}
	}
	changed := func(change func(*outboxv1.Mail)) []byte {
		m := proto.CloneOf(&mail)
		change(m)
		return encoded(t, m)
	}
	key := "a/" + mail.GetMailId()
	state, outbox := b.opts.Topics.AccountState.Name, b.opts.Topics.Outbox.Name
	for _, tc := range []struct {
		name, topic, key string
		value            []byte
	}{
		{"no bytes of ours", state, "a/recent/", []byte{0xff}},
		{"no part", state, "a/recent/", []byte{}},
		{"another kind", state, "a/outage/o", encoded(t, &statev1.AccountPart{Part: &statev1.AccountPart_Recent{Recent: &statev1.Recent{}}})},
		{"another outage", state, "a/outage/o", encoded(t, &statev1.AccountPart{Part: &statev1.AccountPart_Outage{Outage: &statev1.Outage{OutageId: "p"}}})},
		{"a status of tomorrow", state, "a/outage/o", encoded(t, &statev1.AccountPart{Part: &statev1.AccountPart_Outage{Outage: &statev1.Outage{OutageId: "o", Told: []*statev1.Outage_Told{{Status: 9}}}}})},
		{"nothing undecided", state, "a/undecided/1", encoded(t, &statev1.AccountPart{Part: &statev1.AccountPart_Undecided{Undecided: &statev1.Undecided{Offset: 1}}})},
		{"no offset", state, "a/undecided/x", []byte{}},
		{"no kind", state, "a/pet/x", []byte{}},
		{"no account", state, "/recent/", []byte{}},
		{"no mail", outbox, "a/", []byte{}},
		{"no bytes of a mail", outbox, key, []byte{0xff}},
		{"another mail", outbox, "a/m", encoded(t, &mail)},
		{"another account's mail", outbox, "b/" + mail.GetMailId(), encoded(t, &mail)},
		{"no status", outbox, key, changed(func(m *outboxv1.Mail) { m.Status = 0 })},
		{"no lease", outbox, key, changed(func(m *outboxv1.Mail) { m.LeaseTime = nil })},
		{"no attempt", outbox, key, changed(func(m *outboxv1.Mail) { m.Attempt = 0 })},
		{"no next time", outbox, key, changed(func(m *outboxv1.Mail) { m.Status = outboxv1.Mail_WAITING; m.NextTime = nil })},
		{"no end", outbox, key, changed(func(m *outboxv1.Mail) { m.ExpireTime = nil })},
		{"no items", outbox, key, changed(func(m *outboxv1.Mail) { m.Items = nil })},
		{"an item of nothing", outbox, key, changed(func(m *outboxv1.Mail) { m.Items[0].Notification = nil })},
	} {
		p := ledger.Open(b.opts, 0, 1)
		err := p.Restore(&kgo.Record{Topic: tc.topic, Key: []byte(tc.key), Value: tc.value})
		if err == nil || !strings.Contains(err.Error(), tc.key) {
			t.Errorf("%s: error %v, want one that names %s", tc.name, err, tc.key)
		}
	}
}

// FuzzBytes proves that no bytes in the log or in the state topics bring the
// partition down, and that what is refused leaves nothing.
func FuzzBytes(f *testing.F) {
	b := newBench(f, "ann")
	b.poll(b.notify(start, alert("a", "n1")), b.tick(start), b.notify(start, alert("a", "n2")))
	for at, value := range b.topics {
		name, key, _ := strings.Cut(at, " ")
		f.Add(name, key, value)
	}
	for _, rec := range []*kgo.Record{b.notify(start, alert("a", "n3")), b.result(start, b.sent[0].mail, outboxv1.Result_SENT)} {
		f.Add(kafka.Header(rec, kafka.HeaderType), string(rec.Key), rec.Value)
	}
	f.Fuzz(func(t *testing.T, kind, key string, value []byte) {
		rec := func() *kgo.Record {
			return &kgo.Record{
				Topic: kind, Key: []byte(key), Value: bytes.Clone(value), Timestamp: start,
				Headers: []kgo.RecordHeader{{Key: kafka.HeaderType, Value: []byte(kind)}},
			}
		}
		b := newBench(t, "ann")
		if err := b.p.Handle(rec(), start); err != nil {
			if out := b.p.Effects(nil); len(out) > 0 {
				t.Errorf("refused (%v), but left %v", err, out)
			}
		}
		b.poll(b.tick(start), b.tick(start.Add(time.Hour)))

		b = newBench(t, "ann")
		_ = b.p.Restore(rec())
		b.poll(b.tick(start), b.tick(start.Add(time.Hour)))
	})
}
