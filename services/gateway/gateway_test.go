package gateway

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/mail"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/twmb/franz-go/pkg/kgo"
	"go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	deliveryv1 "github.com/tocsin/tocsin/proto/gen/tocsin/delivery/v1"
	notificationv1 "github.com/tocsin/tocsin/proto/gen/tocsin/notification/v1"
	settingsv1 "github.com/tocsin/tocsin/proto/gen/tocsin/settings/v1"
	"github.com/tocsin/tocsin/services/gateway/internal/ledger"
	"github.com/tocsin/tocsin/services/gateway/internal/mailer"
	"github.com/tocsin/tocsin/services/internal/kafka"
	"github.com/tocsin/tocsin/services/internal/kafkatest"
	"github.com/tocsin/tocsin/services/internal/lifecycle"
	"github.com/tocsin/tocsin/services/internal/smtptest"
)

const partitions = 3

// town is a bubble's Kafka, relay and the account acme.
type town struct {
	*testing.T
	kafka *kafkatest.Cluster
	env   lifecycle.Env
	cl    *kgo.Client
	relay string // host:port
}

func newTown(t *testing.T, users ...string) *town {
	c := kafkatest.Virtual(t, partitions)
	w := &town{T: t, kafka: c, env: c.Env(t), cl: c.Client(t), relay: "127.0.0.1:2525"}
	w.set(&settingsv1.Setting{AccountId: "acme", Object: &settingsv1.Setting_Account{Account: &settingsv1.Account{
		AccountId: "acme", Name: "Acme", Timezone: "Europe/Warsaw", Active: true, SystemNotifications: true,
	}}}, "account/acme")
	for _, id := range users {
		w.user(id, func(*settingsv1.User) {})
	}
	return w
}

func (w *town) user(id string, change func(*settingsv1.User)) {
	u := &settingsv1.User{
		UserId: id, Email: id + "@acme.test", Enabled: true, Admin: true,
		Levels: []settingsv1.Level_Value{settingsv1.Level_SYSTEM, settingsv1.Level_LOW},
		Windows: []*settingsv1.Window{{EndMinutes: 1440, Days: []settingsv1.Window_Day{
			settingsv1.Window_MON, settingsv1.Window_TUE, settingsv1.Window_WED, settingsv1.Window_THU,
			settingsv1.Window_FRI, settingsv1.Window_SAT, settingsv1.Window_SUN,
		}}},
	}
	change(u)
	w.set(&settingsv1.Setting{AccountId: "acme", Object: &settingsv1.Setting_User{User: u}}, "user/"+id)
}

func (w *town) set(s *settingsv1.Setting, key string) {
	w.produce(w.kafka.Topics.AccountSettings.Name, "acme/"+key, "", s)
}

// produce appends to acme's partition.
func (w *town) produce(topic, key, kind string, m interface{ MarshalVT() ([]byte, error) }, headers ...kgo.RecordHeader) {
	w.Helper()
	value, err := m.MarshalVT()
	if err != nil {
		w.Fatal(err)
	}
	id, _, _ := strings.Cut(key, "/")
	rec := &kgo.Record{
		Topic: topic, Partition: kafka.PartitionFor(id, partitions), Key: []byte(key), Value: value,
		Headers: append(headers, kgo.RecordHeader{Key: kafka.HeaderType, Value: []byte(kind)}),
	}
	if err := w.cl.ProduceSync(context.Background(), rec).FirstErr(); err != nil {
		w.Fatal(err)
	}
}

// notify appends what the monitor would, about cam of acme unless it says otherwise.
func (w *town) notify(id string, t notificationv1.Notification_Type, change func(*notificationv1.Notification), headers ...kgo.RecordHeader) {
	w.Helper()
	n := &notificationv1.Notification{
		NotificationId: id, AccountId: "acme", DeviceId: "cam", Type: t, Stage: notificationv1.Notification_DUE,
		SinceTime: timestamppb.Now(), DecideTime: timestamppb.Now(),
	}
	if t != notificationv1.Notification_ALERT {
		n.OutageId = "o1"
	}
	change(n)
	w.produce(w.kafka.Topics.Notifications.Name, n.AccountId+"/"+n.DeviceId, ledger.TypeNotification, n, headers...)
}

func asIs(*notificationv1.Notification) {}

func (w *town) mailServer(script smtptest.Script) *smtptest.Server {
	w.Helper()
	ln, err := w.env.Net.Listener("tcp", w.relay)
	if err != nil {
		w.Fatal(err)
	}
	s := smtptest.Start(ln, script)
	w.Cleanup(sync.OnceFunc(s.Close))
	return s
}

func config(relay string) Config {
	host, port, err := net.SplitHostPort(relay)
	if err != nil {
		panic(err)
	}
	number, err := strconv.Atoi(port)
	if err != nil {
		panic(err)
	}
	return Config{
		SMTP: mailer.Config{
			Host: host, Port: number, TLS: mailer.TLSNone, From: "Tocsin <tocsin@tocsin.test>", Hello: "gateway.test", Connections: 2,
			ConnectTimeout: 30 * time.Second, CommandTimeout: time.Minute, DataTimeout: 3 * time.Minute,
			ReplyTimeout: 5 * time.Minute, IdleTimeout: 30 * time.Second, StopTimeout: 10 * time.Second,
		},
		PublicURL: "http://127.0.0.1:7100", Members: 1, Group: "tocsin-gateway", Instance: "g1", InFlight: 8, InFlightAccount: 4,
	}
}

// run starts a gateway and waits until it is ready; stop ends it.
func (w *town) run(env lifecycle.Env) (stop func()) {
	w.Helper()
	s, err := New(config(w.relay), env)
	if err != nil {
		w.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- s.Run(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-ended; err != nil {
			w.Errorf("run: %v", err)
		}
	})
	w.Cleanup(stop)
	for range 300 {
		if s.Ready() == nil {
			return stop
		}
		time.Sleep(100 * time.Millisecond)
	}
	w.Fatalf("not ready after 30 s: %v", s.Ready())
	return nil
}

// records are the committed records of a topic so far.
func (w *town) records(topic string) []*kgo.Record {
	w.Helper()
	cl := w.kafka.Client(w.T, kgo.ConsumeTopics(topic), kgo.FetchIsolationLevel(kgo.ReadCommitted()),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()), kgo.FetchMaxWait(50*time.Millisecond))
	defer cl.Close()
	var all []*kgo.Record
	for {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		fetches := cl.PollFetches(ctx)
		cancel()
		if fetches.NumRecords() == 0 {
			return all
		}
		all = append(all, fetches.Records()...)
	}
}

// told is the topic deliveries in words: "n1 MAILED ann" for a decision,
// "ann #1 SENT" for a mail, with a full stop when it is settled.
func (w *town) told() (lines []string) {
	w.Helper()
	for _, rec := range w.records(w.kafka.Topics.Deliveries.Name) {
		switch kafka.Header(rec, kafka.HeaderType) {
		case ledger.TypeDecision:
			var d deliveryv1.Decision
			if err := proto.Unmarshal(rec.Value, &d); err != nil {
				w.Fatal(err)
			}
			for _, o := range d.GetOutcomes() {
				lines = append(lines, strings.TrimSpace(fmt.Sprintf("%s %s %s", d.GetNotification().GetNotificationId(), o.GetReason(), strings.Join(o.GetUserIds(), " "))))
			}
		case ledger.TypeMailOutcome:
			var m deliveryv1.MailOutcome
			if err := proto.Unmarshal(rec.Value, &m); err != nil {
				w.Fatal(err)
			}
			line := fmt.Sprintf("%s %s", m.GetUserId(), m.GetReason())
			if m.GetResult() != nil {
				line = fmt.Sprintf("%s #%d %s", m.GetUserId(), m.GetResult().GetAttempt(), m.GetReason())
			}
			if m.GetSettled() {
				line += "."
			}
			lines = append(lines, line)
		}
	}
	return lines
}

// outbox is how many mails the compacted topic holds.
func (w *town) outbox() int {
	left := map[string]bool{}
	for _, rec := range w.records(w.kafka.Topics.Outbox.Name) {
		if rec.Value == nil {
			delete(left, string(rec.Key))
		} else {
			left[string(rec.Key)] = true
		}
	}
	return len(left)
}

func read(t *testing.T, m smtptest.Message) *mail.Message {
	t.Helper()
	msg, err := mail.ReadMessage(strings.NewReader(m.Data))
	if err != nil {
		t.Fatal(err)
	}
	return msg
}

// Proves the whole way, from the notification in the log to the mail in the
// sink and SENT on record, and what one can see of it from outside: one log
// line, the delays with and without the hold, one trace.
func TestNotificationBecomesMail(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTown(t, "ann")
		sink := w.mailServer(smtptest.Script{})
		var log lines
		reader := metric.NewManualReader()
		spans := tracetest.NewInMemoryExporter()
		env := w.env
		env.Log = slog.New(slog.NewTextHandler(&log, nil))
		env.Meter = metric.NewMeterProvider(metric.WithReader(reader))
		env.Tracer = sdktrace.NewTracerProvider(sdktrace.WithSyncer(spans))
		stop := w.run(env)

		w.notify("n1", notificationv1.Notification_OFFLINE, func(n *notificationv1.Notification) {
			n.SinceTime = timestamppb.New(time.Now().Add(-300 * time.Second))
			n.Hold = durationpb.New(299 * time.Second)
		}, kgo.RecordHeader{Key: kafka.HeaderTraceParent, Value: []byte("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")})
		time.Sleep(2 * time.Second)

		got := sink.Messages()
		if len(got) != 1 || got[0].To != "ann@acme.test" {
			t.Fatalf("in the sink: %v; log:\n%s", got, log.String())
		}
		if id := read(t, got[0]).Header.Get("Message-Id"); !strings.HasSuffix(id, "@tocsin.test>") {
			t.Errorf("Message-ID %s", id)
		}
		if diff := cmp.Diff([]string{"n1 MAILED ann", "ann #1 SENT."}, w.told()); diff != "" {
			t.Errorf("deliveries (-want +got):\n%s", diff)
		}
		if n := w.outbox(); n != 0 {
			t.Errorf("%d mails are left in the outbox", n)
		}
		stop()

		line := log.with("notification decided")
		for _, want := range []string{"notifType=Offline", "alertDelay=300.", "alertDelayWithoutHold=1.", "trace_id=0af7651916cd43dd8448eb211c80319c"} {
			if !strings.Contains(line, want) {
				t.Errorf("the line lacks %s: %s", want, line)
			}
		}
		if strings.Contains(log.String(), "@acme.test") {
			t.Errorf("an address in the log:\n%s", log.String())
		}
		sums := histograms(t, reader)
		for name, want := range map[string]float64{
			"tocsin_alert_delay_seconds Offline included": 300, "tocsin_alert_delay_seconds Offline excluded": 1,
			"tocsin_mail_delay_seconds Offline included": 300, "tocsin_mail_delay_seconds Offline excluded": 1,
		} {
			if got, ok := sums[name]; !ok || got < want || got > want+1 {
				t.Errorf("%s is %v, want about %v", name, got, want)
			}
		}
		var decide, send tracetest.SpanStub
		for _, s := range spans.GetSpans() {
			switch {
			case s.Name == "decide Offline":
				decide = s
			case strings.HasPrefix(s.Name, "smtp"):
				send = s
			}
		}
		if decide.Parent.SpanID().String() != "b7ad6b7169203331" || send.Parent.SpanID() != decide.SpanContext.SpanID() ||
			send.SpanContext.TraceID().String() != "0af7651916cd43dd8448eb211c80319c" {
			t.Errorf("spans do not hang together: notification > %v > %v", decide.Parent, send.Parent)
		}
	})
}

// lines is a log in memory.
type lines struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (l *lines) Write(p []byte) (int, error) { l.mu.Lock(); defer l.mu.Unlock(); return l.buf.Write(p) }
func (l *lines) String() string              { l.mu.Lock(); defer l.mu.Unlock(); return l.buf.String() }

func (l *lines) with(text string) string {
	for line := range strings.Lines(l.String()) {
		if strings.Contains(line, text) {
			return line
		}
	}
	return ""
}

// histograms are the sums by "name type held".
func histograms(t *testing.T, r *metric.ManualReader) map[string]float64 {
	t.Helper()
	var all metricdata.ResourceMetrics
	if err := r.Collect(context.Background(), &all); err != nil {
		t.Fatal(err)
	}
	sums := map[string]float64{}
	for _, scope := range all.ScopeMetrics {
		for _, m := range scope.Metrics {
			if h, ok := m.Data.(metricdata.Histogram[float64]); ok {
				for _, p := range h.DataPoints {
					kind, _ := p.Attributes.Value("type")
					held, _ := p.Attributes.Value("held")
					sums[fmt.Sprintf("%s %s %s", m.Name, kind.AsString(), held.AsString())] = p.Sum
				}
			}
		}
	}
	return sums
}

// Proves that a mail waits for a relay that is away and goes when it is back,
// and that a gateway that is stopped and started meanwhile changes nothing.
func TestRelayAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTown(t, "ann")
		stop := w.run(w.env)
		w.notify("n1", notificationv1.Notification_OFFLINE, asIs)
		time.Sleep(2 * time.Minute)
		stop()
		time.Sleep(time.Minute)
		w.run(w.env)
		time.Sleep(2 * time.Minute)
		if n := w.outbox(); n != 1 {
			t.Fatalf("%d mails wait in the outbox, want 1", n)
		}
		sink := w.mailServer(smtptest.Script{})
		time.Sleep(10 * time.Minute)
		if n := len(sink.Messages()); n != 1 {
			t.Fatalf("%d mails came, want 1", n)
		}
		told := w.told()
		last := told[len(told)-1]
		for i, line := range told[1 : len(told)-1] {
			if want := fmt.Sprintf("ann #%d RETRYING", i+1); line != want {
				t.Errorf("deliveries: %q, want %q", line, want)
			}
		}
		if want := fmt.Sprintf("ann #%d SENT.", len(told)-1); told[0] != "n1 MAILED ann" || last != want {
			t.Errorf("deliveries begin with %q and end with %q, want %q", told[0], last, want)
		}
	})
}

// Proves section 10: a gateway that dies between intent and result leaves an
// uncertain attempt, known when its lease has ended, and the retry has the same
// Message-ID.
func TestKilledBetweenIntentAndResult(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTown(t, "ann")
		sink := w.mailServer(smtptest.Script{Reply: func(e smtptest.Event) *smtptest.Reply {
			if e.Verb == smtptest.Dot && e.Mail == 1 {
				return &smtptest.Reply{Deaf: true} // taken, and never answered
			}
			return nil
		}})
		wire := &cuttable{dial: w.env.Net.Dial}
		doomed := w.env
		doomed.Net.Dial = wire.connect
		stop := w.run(doomed)
		w.notify("n1", notificationv1.Notification_OFFLINE, asIs)
		time.Sleep(5 * time.Second)
		if len(sink.Messages()) != 1 {
			t.Fatal("the first attempt did not get to the dot")
		}
		wire.cut() // all it hears and says from now on is nothing
		go stop()
		time.Sleep(10 * time.Second)

		begun := time.Now()
		w.run(w.env)
		time.Sleep(30 * time.Second)
		if n := len(sink.Messages()); n != 1 {
			t.Fatalf("the new owner did not wait the lease out: %d mails after %v", n, time.Since(begun))
		}
		time.Sleep(2 * time.Minute)
		got := sink.Messages()
		if len(got) != 2 {
			t.Fatalf("%d mails came, want 2; deliveries %v", len(got), w.told())
		}
		first, second := read(t, got[0]).Header, read(t, got[1]).Header
		if a, b := first.Get("Message-Id"), second.Get("Message-Id"); a != b || a == "" {
			t.Errorf("Message-IDs %q and %q", a, b)
		}
		if a, b := first.Get("Date"), second.Get("Date"); a != b || a == "" {
			t.Errorf("Dates %q and %q", a, b)
		}
		if diff := cmp.Diff([]string{"n1 MAILED ann", "ann #1 UNCERTAIN", "ann #2 SENT."}, w.told()); diff != "" {
			t.Errorf("deliveries (-want +got):\n%s", diff)
		}
	})
}

// cuttable is a network that can be cut off for good.
type cuttable struct {
	dial  func(ctx context.Context, network, address string) (net.Conn, error)
	mu    sync.Mutex
	conns []net.Conn
	gone  bool
}

func (c *cuttable) connect(ctx context.Context, network, address string) (net.Conn, error) {
	c.mu.Lock()
	gone := c.gone
	c.mu.Unlock()
	if gone {
		return nil, io.ErrClosedPipe
	}
	conn, err := c.dial(ctx, network, address)
	if err == nil {
		c.mu.Lock()
		c.conns = append(c.conns, conn)
		c.mu.Unlock()
	}
	return conn, err
}

func (c *cuttable) cut() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.gone = true
	for _, conn := range c.conns {
		conn.Close()
	}
}

// Proves rule G8 end to end: an outage is refused to one and sent to another,
// and the recovery goes to that one only, in one thread; settings are followed
// while running.
func TestRecoveryGoesToThoseWhoWereSent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTown(t, "ann", "bob", "cid")
		w.user("eve", func(u *settingsv1.User) { u.Windows = nil })
		sink := w.mailServer(smtptest.Script{Reply: func(e smtptest.Event) *smtptest.Reply {
			if e.Verb == "RCPT" && e.Rcpt == "bob@acme.test" {
				return &smtptest.Reply{Text: "550 5.1.1 no such user"}
			}
			return nil
		}})
		w.run(w.env)
		w.notify("n1", notificationv1.Notification_OFFLINE, asIs)
		time.Sleep(5 * time.Second)
		w.user("cid", func(u *settingsv1.User) { u.Unsubscribed = []string{"ONLINE"} })
		time.Sleep(5 * time.Second)
		w.notify("n2", notificationv1.Notification_ONLINE, asIs)
		time.Sleep(5 * time.Second)

		var to []string
		var ids, references []string
		for _, m := range sink.Messages() {
			to = append(to, m.To)
			if m.To == "ann@acme.test" {
				h := read(t, m).Header
				ids, references = append(ids, h.Get("Message-Id")), append(references, h.Get("References"))
			}
		}
		slices.Sort(to)
		if diff := cmp.Diff([]string{"ann@acme.test", "ann@acme.test", "cid@acme.test"}, to); diff != "" {
			t.Fatalf("mails to (-want +got):\n%s", diff)
		}
		if references[1] != ids[0] {
			t.Errorf("the recovery refers to %q, want %q", references[1], ids[0])
		}
		told := w.told()
		for _, want := range []string{
			"n1 MAILED ann bob cid", "n1 OUTSIDE_USERS_SCHEDULE eve", "bob #1 REJECTED.",
			"n2 MAILED ann", "n2 NOTIFICATIONS_DISABLED cid", "n2 NOT_TOLD_OF_OUTAGE bob eve",
		} {
			if !slices.Contains(told, want) {
				t.Errorf("deliveries lack %q: %q", want, told)
			}
		}
		if len(told) != 9 {
			t.Errorf("deliveries: %q", told)
		}
	})
}

// Proves that a record nobody can read stops nothing: it is among the dead
// letters, and the good one behind it is decided; and that an account nobody
// set up gets its answer.
func TestBadRecordAndUnknownAccount(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTown(t, "ann")
		w.run(w.env)
		w.notify("", notificationv1.Notification_ALERT, asIs)
		w.notify("n2", notificationv1.Notification_ALERT, func(n *notificationv1.Notification) { n.AccountId = "nobody" })
		w.notify("n3", notificationv1.Notification_ALERT, func(n *notificationv1.Notification) {
			n.SinceTime = timestamppb.New(time.Now().Add(-time.Hour))
		})
		time.Sleep(2 * time.Second)
		told := w.told()
		slices.Sort(told)
		if diff := cmp.Diff([]string{"n2 UNABLE_TO_GET_SETTINGS", "n3 LATE ann"}, told); diff != "" {
			t.Errorf("deliveries (-want +got):\n%s", diff)
		}
		if n := len(w.records(w.kafka.Topics.DeadLetters.Name)); n != 1 {
			t.Errorf("%d dead letters, want 1", n)
		}
	})
}
