package integration

import (
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/tocsin/tocsin/integration/harness"
	notificationv1 "github.com/tocsin/tocsin/proto/gen/tocsin/notification/v1"
)

const (
	// slack is what may pass between a deadline and its mail on a busy machine.
	slack = 5 * time.Second
	// patience is how long a test waits for what comes at no certain time.
	patience = 60 * time.Second
)

// The five binaries make of events what the rules say: a motion is told at
// once to those who want it, an outage after its hold to the administrator,
// its end after the hold to the same person in the same thread, a blip never.
func TestSuite(t *testing.T) {
	t.Parallel()
	harness.OnEachBroker(t, func(t *testing.T, b *harness.Broker) {
		const offline, online = 4 * time.Second, 2 * time.Second
		s := harness.StartSuite(t, b, harness.Options{
			Settings: acme,
			Args:     map[string][]string{"monitor": {"--hold.offline", offline.String(), "--hold.online", online.String()}},
		})
		now := time.Now()
		s.Post(
			harness.StatusAt("acme", "door", "ONLINE", now),
			harness.StatusAt("acme", "yard", "ONLINE", now),
			harness.StatusAt("acme", "shop", "ONLINE", now),
		)

		// Motion; its updates, its end and its repetition say nothing new.
		moved := time.Now()
		s.Post(harness.MotionAt("acme", "door", "START", "m1", "step", moved))
		s.Post(
			harness.MotionAt("acme", "door", "UPDATE", "m1", "step", moved.Add(200*time.Millisecond)),
			harness.MotionAt("acme", "door", "START", "m1", "step", moved),
			harness.MotionAt("acme", "door", "END", "m1", "step", moved.Add(time.Second)),
		)
		mails := s.Sink.Await(2, patience)
		if to := recipients(mails); !slices.Equal(to, []string{"ann@acme.test", "bob@acme.test"}) {
			t.Errorf("the motion was mailed to %v, want Ann and Bob", to)
		}
		for _, m := range mails {
			wantMail(t, m, "[Motion] Front door", "Step")
			t.Logf("motion: mailed %v after it occurred", m.At.Sub(moved).Round(time.Millisecond))
		}

		// A blip of one, an outage of another.
		down := time.Now()
		s.Post(harness.StatusAt("acme", "shop", "OFFLINE", down), harness.StatusAt("acme", "yard", "OFFLINE", down))
		harness.Pass(offline / 2)
		s.Post(harness.StatusAt("acme", "shop", "ONLINE", time.Now()))
		outage := s.Sink.Await(3, patience)[2]
		wantMail(t, outage, "[Offline] Yard", "")
		wantAt(t, outage, down.Add(offline))

		back := time.Now()
		s.Post(harness.StatusAt("acme", "yard", "ONLINE", back))
		recovery := s.Sink.Await(4, patience)[3]
		wantMail(t, recovery, "[Online] Yard", "")
		wantAt(t, recovery, back.Add(online))
		for _, m := range []harness.Mail{outage, recovery} {
			if !slices.Equal(m.To, []string{"ann@acme.test"}) {
				t.Errorf("%v: want it to Ann alone", m)
			}
		}
		if got, want := recovery.Header.Get("In-Reply-To"), outage.Header.Get("Message-Id"); got != want {
			t.Errorf("the recovery is In-Reply-To %q, want the outage's %q", got, want)
		}

		harness.Pass(offline)
		s.Sink.Exactly(4)
		if got := stages(t, b, "shop"); !slices.Equal(got, []string{"OFFLINE PENDING", "OFFLINE WITHDRAWN"}) {
			t.Errorf("the blip's notifications are %v, want its hold begun and withdrawn", got)
		}
		for _, p := range s.Processes() {
			if code := p.Stop(20 * time.Second); code != 0 {
				t.Errorf("%s stopped with exit code %d, want 0", p.Name, code)
			}
		}
	})
}

// One motion is one trace, from the archiver to the relay's answer: its context
// and the time at which it occurred ride in the records in between. The hold of
// an outage is a span with its true start and end. What changes nothing leaves
// no span.
func TestTraces(t *testing.T) {
	t.Parallel()
	harness.OnEachBroker(t, func(t *testing.T, b *harness.Broker) {
		const offline = 2 * time.Second
		collector := harness.StartCollector(t)
		s := harness.StartSuite(t, b, harness.Options{
			Settings: acme,
			Env:      collector.Env,
			Args:     map[string][]string{"monitor": {"--hold.offline", offline.String()}},
		})
		start := time.Now()
		s.Post(harness.StatusAt("acme", "yard", "ONLINE", start))
		s.Post(harness.StatusAt("acme", "yard", "ONLINE", start.Add(time.Millisecond)))
		moved := time.Now()
		s.Post(harness.MotionAt("acme", "yard", "START", "m1", "", moved))
		mail := s.Sink.Await(1, patience)[0]

		trace := mail.Header.Get("X-Tocsin-Trace-Id")
		if trace == "" {
			t.Fatalf("the mail names no trace: %v", mail.Header)
		}
		spans := collector.Trace(trace, patience, "publish etag", "decide due", "decide Alert", "smtp send")
		var sent []harness.Span
		roots := 0
		for _, span := range spans {
			if span.Parent() == "" {
				roots++
				if span.Service != "archiver" {
					t.Errorf("the trace begins at %v, want the archiver", span)
				}
			} else if _, ok := spans[span.Parent()]; !ok {
				t.Errorf("%v: its parent is not in the trace", span)
			}
			if strings.HasPrefix(span.Name, "smtp") {
				sent = append(sent, span)
			}
		}
		if roots != 1 || len(sent) != 1 {
			t.Errorf("the trace has %d roots and %d SMTP spans, want one of each: %v", roots, len(sent), spans)
		}
		occurred := moved.UTC().Truncate(time.Millisecond)
		for _, span := range sent {
			if got := span.Attribute("tocsin.etag.occur_time"); got != occurred.Format("2006-01-02T15:04:05.000Z07:00") {
				t.Errorf("the SMTP span says the motion occurred %q, want %v", got, occurred)
			}
		}
		inRecords := 0
		for _, topic := range []string{"etags", "notifications"} {
			for _, rec := range b.Records(b.Topic(topic)) {
				if !strings.HasPrefix(harness.Header(rec, "traceparent"), "00-"+trace) {
					continue
				}
				inRecords++
				if at, err := time.Parse(time.RFC3339, harness.Header(rec, "occur-time")); err != nil || !at.Equal(occurred) {
					t.Errorf("%s: the occur time rides along as %q, want %v", topic, harness.Header(rec, "occur-time"), occurred)
				}
			}
		}
		if inRecords != 2 {
			t.Errorf("%d records carry the motion's trace, want the ETag and its notification", inRecords)
		}

		down := time.Now()
		s.Post(harness.StatusAt("acme", "yard", "OFFLINE", down))
		outage := s.Sink.Await(2, patience)[1]
		spans = collector.Trace(outage.Header.Get("X-Tocsin-Trace-Id"), patience, "hold", "decide Offline", "smtp send")
		holds := 0
		for _, span := range spans {
			if !strings.Contains(span.Name, "hold") {
				continue
			}
			holds++
			if d := span.End().Sub(span.Start()); d < offline-200*time.Millisecond || d > offline+slack || span.Start().Before(down.Truncate(time.Millisecond)) {
				t.Errorf("the hold's span is from %v to %v, want %v from %v", span.Start(), span.End(), offline, down)
			}
			if len(span.Links) == 0 {
				t.Errorf("the hold's span has no link to the event's trace: %v", span)
			}
		}
		if holds != 1 {
			t.Errorf("%d spans of a hold in the outage's trace, want 1: %v", holds, spans)
		}

		// The first ONLINE may have an effect; its repetition has none.
		archived := 0
		for _, span := range collector.Spans() {
			if span.Service == "archiver" && span.Parent() == "" {
				archived++
			}
		}
		if archived > 3 {
			t.Errorf("the archiver began %d traces for 3 events that may change something and one repetition", archived)
		}
	})
}

func recipients(mails []harness.Mail) []string {
	var to []string
	for _, m := range mails {
		to = append(to, m.To...)
	}
	slices.Sort(to)
	return to
}

// wantMail checks what a person reads first, in both parts.
func wantMail(t *testing.T, m harness.Mail, subject, says string) {
	t.Helper()
	if !strings.HasPrefix(m.Subject, subject) {
		t.Errorf("subject is %q, want %q…", m.Subject, subject)
	}
	if !strings.Contains(m.Text, says) || !strings.Contains(m.HTML, says) {
		t.Errorf("%v: %q is not in text and HTML:\n%s", m, says, m.Text)
	}
}

// wantAt checks that a mail came at its deadline: never before, soon after.
func wantAt(t *testing.T, m harness.Mail, due time.Time) {
	t.Helper()
	// Deadlines are in whole milliseconds.
	if late := m.At.Sub(due); late < -time.Millisecond || late > slack {
		t.Errorf("%v: came %v after it was due", m, late)
	} else {
		t.Logf("%v: came %v after it was due", m, late.Round(time.Millisecond))
	}
}

// stages are type and stage of the device's notifications, in order.
func stages(t *testing.T, b *harness.Broker, device string) []string {
	t.Helper()
	var all []string
	for _, rec := range b.Records(b.Topic("notifications")) {
		if harness.Header(rec, "type") != "tocsin.notification.v1.Notification" {
			continue
		}
		var n notificationv1.Notification
		if err := proto.Unmarshal(rec.Value, &n); err != nil {
			t.Fatalf("notification at offset %d: %v", rec.Offset, err)
		}
		if n.DeviceId == device {
			all = append(all, n.Type.String()+" "+n.Stage.String())
		}
	}
	return all
}
