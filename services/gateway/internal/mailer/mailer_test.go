package mailer

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/wneessen/go-mail/smtp"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	notificationv1 "github.com/tocsin/tocsin/proto/gen/tocsin/notification/v1"
	outboxv1 "github.com/tocsin/tocsin/proto/gen/tocsin/outbox/v1"
	"github.com/tocsin/tocsin/services/internal/inbox"
	"github.com/tocsin/tocsin/services/internal/smtptest"
)

// Outcomes, shortened.
const (
	sent      = outboxv1.Result_SENT
	rejected  = outboxv1.Result_REJECTED
	retrying  = outboxv1.Result_RETRYING
	uncertain = outboxv1.Result_UNCERTAIN
)

// fakeFacts is the log: it keeps what is appended, unless fail says no.
type fakeFacts struct {
	mu   sync.Mutex
	fail func() error
	// How long a renewal and a result take.
	slow, slowResult time.Duration

	results  []*outboxv1.Result
	times    []time.Time
	renewals []time.Time
}

func (f *fakeFacts) add(do func()) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.fail != nil {
		if err := f.fail(); err != nil {
			return err
		}
	}
	do()
	return nil
}

func (f *fakeFacts) Result(ctx context.Context, r *outboxv1.Result) error {
	if !sleep(ctx, f.slowResult) {
		return ctx.Err()
	}
	return f.add(func() { f.results, f.times = append(f.results, r), append(f.times, time.Now()) })
}

func (f *fakeFacts) Renew(ctx context.Context, _ *outboxv1.Renewal) error {
	if !sleep(ctx, f.slow) {
		return ctx.Err()
	}
	return f.add(func() { f.renewals = append(f.renewals, time.Now()) })
}

// bench is a mailer in a bubble with a relay that does as the test says.
type bench struct {
	*Mailer
	t     *testing.T
	net   *kfake.VirtualNetwork
	relay *smtptest.Server
	facts *fakeFacts
	log   *bytes.Buffer
	spans *tracetest.SpanRecorder
	meter *sdkmetric.ManualReader
	start time.Time
	stop  context.CancelFunc
	ended chan struct{}
	sent  int
}

// in runs body in a bubble; set may change the settings.
func in(t *testing.T, script smtptest.Script, set func(*Config), body func(*bench)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		b := &bench{t: t, net: &kfake.VirtualNetwork{}, facts: &fakeFacts{}, log: &bytes.Buffer{}, start: time.Now(), ended: make(chan struct{})}
		cfg := Config{
			Host: "localhost", Port: 2525, TLS: TLSNone, From: "Tocsin <tocsin@site.test>", Connections: 1,
			ConnectTimeout: 30 * time.Second, CommandTimeout: time.Minute, DataTimeout: 3 * time.Minute,
			ReplyTimeout: 5 * time.Minute, IdleTimeout: 10 * time.Minute, StopTimeout: 20 * time.Second,
		}
		if set != nil {
			set(&cfg)
		}
		b.listen(script)
		b.spans, b.meter = tracetest.NewSpanRecorder(), sdkmetric.NewManualReader()
		var err error
		b.Mailer, err = New(cfg, Options{
			Log:    slog.New(slog.NewTextHandler(b.log, nil)),
			Tracer: sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(b.spans)),
			Meter:  sdkmetric.NewMeterProvider(sdkmetric.WithReader(b.meter)),
			Dial:   b.net.DialContext, Facts: b.facts,
			Render: func(m *outboxv1.Mail) (Content, error) {
				if len(m.GetItems()) == 0 {
					return Content{}, errors.New("nothing to say")
				}
				return Content{Subject: "[Offline] " + m.GetItems()[0].GetDeviceName(), Text: "text\n.\nmore\n", HTML: "<p>html</p>\n"}, nil
			},
		})
		if err != nil {
			t.Fatal(err)
		}
		var ctx context.Context
		ctx, b.stop = context.WithCancel(t.Context())
		go func() {
			defer close(b.ended)
			if err := b.Run(ctx); err != nil {
				t.Error(err)
			}
		}()
		body(b)
		b.stop()
		<-b.ended
		b.relay.Close()
	})
}

func (b *bench) listen(script smtptest.Script) {
	l, err := b.net.Listen("tcp", "localhost:2525")
	if err != nil {
		b.t.Fatal(err)
	}
	b.relay = smtptest.Start(l, script)
}

// mail is attempt 1 of a new mail to address.
func (b *bench) mail(address string) *outboxv1.Mail {
	b.sent++
	id := fmt.Sprintf("m%d", b.sent)
	return &outboxv1.Mail{
		MailId: id, AccountId: "acme", UserId: "u1", Address: address, RecipientName: "Ann", MessageId: id + "@site.test",
		Date: timestamppb.New(b.start), Attempt: 1,
		Items: []*outboxv1.Mail_Item{{DeviceName: "Front door", Notification: &notificationv1.Notification{
			NotificationId: "n" + id, Type: notificationv1.Notification_OFFLINE, SinceTime: timestamppb.New(b.start.Add(-301 * time.Second)),
			Hold: durationpb.New(300 * time.Second),
		}}},
	}
}

// late is an ExpireAt that no attempt gets to.
const late = 365 * 24 * time.Hour

// try sends m with a whole lease.
func (b *bench) try(m *outboxv1.Mail) {
	b.Send(Attempt{Mail: m, LeaseUntil: time.Now().Add(DefaultLease), ExpireAt: time.Now().Add(late)})
}

// await waits for n results in all and returns them.
func (b *bench) await(n int) []*outboxv1.Result {
	b.t.Helper()
	for range 100_000 {
		synctest.Wait()
		b.facts.mu.Lock()
		got := slices.Clone(b.facts.results)
		b.facts.mu.Unlock()
		if len(got) >= n {
			return got
		}
		time.Sleep(100 * time.Millisecond)
	}
	b.t.Fatalf("%d of %d results came; commands:\n%s", len(b.facts.results), n, strings.Join(b.relay.Commands(), "\n"))
	return nil
}

// since is the time from the start of the bubble, in whole seconds.
func (b *bench) since() time.Duration { return time.Since(b.start).Truncate(time.Second) }

// said has the commands whose line begins with verb, with their connection.
func (b *bench) said(verb string) []string {
	var out []string
	for _, c := range b.relay.Commands() {
		if _, l, _ := strings.Cut(c, ": "); strings.HasPrefix(l, verb) {
			out = append(out, c)
		}
	}
	return out
}

func (b *bench) uncertains() int64 {
	var all metricdata.ResourceMetrics
	if err := b.meter.Collect(b.t.Context(), &all); err != nil {
		b.t.Fatal(err)
	}
	for _, s := range all.ScopeMetrics {
		for _, m := range s.Metrics {
			if m.Name == "tocsin_smtp_uncertain_total" {
				return m.Data.(metricdata.Sum[int64]).DataPoints[0].Value
			}
		}
	}
	return 0
}

func outcomes(rs []*outboxv1.Result) string {
	var out []string
	for _, r := range rs {
		s := fmt.Sprintf("%s/%d %s", r.GetMailId(), r.GetAttempt(), r.GetOutcome())
		if r.GetReplyCode() != 0 {
			s += fmt.Sprintf(" %d", r.GetReplyCode())
		}
		if r.GetEnhancedCode() != "" {
			s += " " + r.GetEnhancedCode()
		}
		out = append(out, s)
	}
	return strings.Join(out, ", ")
}

func want(t *testing.T, what string, got, want any) {
	t.Helper()
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("%s (-want +got):\n%s", what, d)
	}
}

// on answers events of one verb.
func on(verb string, r smtptest.Reply) func(smtptest.Event) *smtptest.Reply {
	return func(e smtptest.Event) *smtptest.Reply {
		if e.Verb == verb {
			return &r
		}
		return nil
	}
}

const traceparent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"

// A mail arrives whole, with the headers that the rules ask for, and its result
// says what the relay said.
func TestSent(t *testing.T) {
	in(t, smtptest.Script{Extensions: []string{"8BITMIME", "SMTPUTF8"}}, nil, func(b *bench) {
		m := b.mail("ann@acme.test")
		m.RecipientName = "Änn \"A\" Özil"
		m.Items[0].DeviceName = "Tür"
		m.Items[0].Traceparent = traceparent
		m.References = []string{"r1@site.test", "r2@site.test"}
		b.try(m)
		r := b.await(1)[0]
		want(t, "result", outcomes([]*outboxv1.Result{r})+" "+r.GetText()+" "+r.GetRelay(), "m1/1 SENT 250 2.0.0 2.0.0 queued as 42 localhost:2525")
		msgs := b.relay.Messages()
		if len(msgs) != 1 {
			t.Fatalf("%d messages", len(msgs))
		}
		want(t, "envelope", []string{msgs[0].From, msgs[0].To, msgs[0].Params}, []string{"tocsin@site.test", "ann@acme.test", "BODY=8BITMIME"})
		for i, l := range strings.Split(strings.TrimSuffix(msgs[0].Data, "\r\n"), "\r\n") {
			if len(l) > 78 || !ascii(l) {
				t.Errorf("line %d is not fit for every relay: %q", i+1, l)
			}
		}
		p := b.read(msgs[0].Data)
		want(t, "view", []string{p.From, p.To, p.Subject, p.MessageID, p.Text, p.HTML, p.Problem},
			[]string{"\"Tocsin\" <tocsin@site.test>", "Änn \"A\" Özil <ann@acme.test>", "[Offline] Tür", "m1@site.test", "text\r\n.\r\nmore\r\n", "<p>html</p>\r\n", ""})
		for name, v := range map[string]string{
			"In-Reply-To": "<r2@site.test>", "References": "<r1@site.test> <r2@site.test>", "Auto-Submitted": "auto-generated",
			"X-Tocsin-Trace-Id": "0af7651916cd43dd8448eb211c80319c", "MIME-Version": "1.0", "User-Agent": "",
		} {
			want(t, name, p.Get(name), v)
		}
		if !p.Date.Equal(b.start) {
			t.Errorf("date %v, want %v", p.Date, b.start)
		}
		if strings.Contains(b.log.String(), "@") {
			t.Errorf("an address was logged:\n%s", b.log)
		}
	})
}

func (b *bench) read(data string) inbox.Message {
	b.t.Helper()
	box, err := inbox.Open("")
	if err != nil {
		b.t.Fatal(err)
	}
	s, err := box.Add("", nil, []byte(data))
	if err != nil {
		b.t.Fatal(err)
	}
	m, err := box.Get(s.ID)
	if err != nil {
		b.t.Fatal(err)
	}
	return m
}

// Every try of a mail is the same message, byte for byte.
func TestSameMessageEachTry(t *testing.T) {
	in(t, smtptest.Script{}, nil, func(b *bench) {
		m := b.mail("ann@acme.test")
		b.try(m)
		b.await(1)
		time.Sleep(time.Hour)
		m.Attempt = 2
		b.try(m)
		b.await(2)
		msgs := b.relay.Messages()
		want(t, "second copy", msgs[1].Data, msgs[0].Data)
	})
}

// B40: the relay takes the mail and its answer is lost (a) with the connection,
// (b) because it comes after minutes of patience. The mail is uncertain, which
// a metric counts, and the retry has the same Message-ID.
func TestUncertain(t *testing.T) {
	for name, c := range map[string]struct {
		reply   smtptest.Reply
		minutes time.Duration
	}{
		"dropped":  {smtptest.Reply{Drop: true}, 0},
		"late":     {smtptest.Reply{Text: "250 2.0.0 queued", After: 7 * time.Minute}, 5 * time.Minute},
		"nonsense": {smtptest.Reply{Text: "what a lovely mail"}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			script := smtptest.Script{Reply: func(e smtptest.Event) *smtptest.Reply {
				if e.Verb == smtptest.Dot && e.Mail == 1 {
					return &c.reply
				}
				return nil
			}}
			in(t, script, nil, func(b *bench) {
				m := b.mail("ann@acme.test")
				b.try(m)
				want(t, "first try", outcomes(b.await(1)), "m1/1 UNCERTAIN")
				want(t, "patience", b.since(), c.minutes)
				if n := len(b.facts.renewals); n < int(c.minutes/(20*time.Second))-1 {
					t.Errorf("%d renewals", n)
				}
				want(t, "metric", b.uncertains(), int64(1))
				m.Attempt = 2
				b.try(m)
				want(t, "both", outcomes(b.await(2)), "m1/1 UNCERTAIN, m1/2 SENT 250 2.0.0")
				msgs := b.relay.Messages()
				if len(msgs) != 2 || b.read(msgs[0].Data).MessageID != b.read(msgs[1].Data).MessageID {
					t.Errorf("%d copies: %v", len(msgs), msgs)
				}
			})
		})
	}
}

// The relay may take minutes for the answer to the final dot; the lease is
// renewed all the while and not after.
func TestSlowAnswer(t *testing.T) {
	in(t, smtptest.Script{Reply: on(smtptest.Dot, smtptest.Reply{Text: "250 2.0.0 at last", After: 250 * time.Second})}, nil, func(b *bench) {
		b.try(b.mail("ann@acme.test"))
		want(t, "result", outcomes(b.await(1)), "m1/1 SENT 250 2.0.0")
		time.Sleep(time.Hour)
		want(t, "renewals", len(b.facts.renewals), 12)
		for i, at := range b.facts.renewals {
			want(t, "renewal", at.Sub(b.start), time.Duration(i+1)*20*time.Second)
		}
	})
}

// B41: a kept connection that the relay gave up while it idled, with a 421 or
// without a word, costs the next mail nothing: it goes at once by a fresh one.
func TestIdledOut(t *testing.T) {
	for name, idle := range map[string]smtptest.Reply{
		"421":     {Text: "421 4.4.2 timeout", Drop: true},
		"no word": {Drop: true},
	} {
		t.Run(name, func(t *testing.T) {
			in(t, smtptest.Script{Idle: 65 * time.Second, IdleReply: idle}, nil, func(b *bench) {
				b.try(b.mail("ann@acme.test"))
				b.await(1)
				time.Sleep(2 * time.Minute)
				before := time.Now()
				b.try(b.mail("bob@acme.test"))
				want(t, "results", outcomes(b.await(2)), "m1/1 SENT 250 2.0.0, m2/1 SENT 250 2.0.0")
				want(t, "wait", time.Since(before), time.Duration(0))
				want(t, "connections", b.relay.Opened(), 2)
				want(t, "copies", len(b.relay.Messages()), 2)
				want(t, "spans", len(b.spans.Ended()), 2)
				want(t, "log", b.log.String(), "")
			})
		})
	}
}

// A 421 on a fresh connection is a retry, and the next connection waits.
func TestFresh421(t *testing.T) {
	script := smtptest.Script{Reply: func(e smtptest.Event) *smtptest.Reply {
		if e.Verb == "MAIL" && e.Conn == 1 {
			return &smtptest.Reply{Text: "421 4.3.2 ann@acme.test: too busy", Drop: true}
		}
		return nil
	}}
	in(t, script, nil, func(b *bench) {
		m := b.mail("ann@acme.test")
		b.try(m)
		want(t, "result", outcomes(b.await(1)), "m1/1 RETRYING 421 4.3.2")
		m.Attempt = 2
		b.try(m)
		want(t, "both", outcomes(b.await(2)), "m1/1 RETRYING 421 4.3.2, m1/2 SENT 250 2.0.0")
		if wait := time.Since(b.start); wait < 750*time.Millisecond || wait > 2*time.Second {
			t.Errorf("the second connection came after %v, want about 1 s", wait)
		}
		if l := b.log.String(); strings.Count(l, "takes no mail now") != 1 || strings.Count(l, "usable again") != 1 || strings.Contains(l, "@") {
			t.Errorf("log:\n%s", l)
		}
	})
}

// B42: one refused recipient stops nobody else, and the connection stays usable.
func TestRefusedRecipients(t *testing.T) {
	script := smtptest.Script{Reply: func(e smtptest.Event) *smtptest.Reply {
		switch {
		case e.Verb == "RCPT" && e.Rcpt == "bob@acme.test":
			return &smtptest.Reply{Text: "550-5.1.1 nobody\n550 5.1.1 here"}
		case e.Verb == "RCPT" && e.Rcpt == "carol@acme.test" && e.Mail == 3:
			return &smtptest.Reply{Text: "450 4.2.1 later"}
		}
		return nil
	}}
	in(t, script, nil, func(b *bench) {
		var carol *outboxv1.Mail
		for _, a := range []string{"alice", "bob", "carol", "dave"} {
			m := b.mail(a + "@acme.test")
			b.try(m)
			if a == "carol" {
				carol = m
			}
		}
		rs := b.await(4)
		// Each is appended by itself, in whatever order.
		slices.SortFunc(rs, func(a, b *outboxv1.Result) int { return strings.Compare(a.GetMailId(), b.GetMailId()) })
		want(t, "results", outcomes(rs), "m1/1 SENT 250 2.0.0, m2/1 REJECTED 550 5.1.1, m3/1 RETRYING 450 4.2.1, m4/1 SENT 250 2.0.0")
		want(t, "words", rs[1].GetText(), "5.1.1 nobody 5.1.1 here")
		carol.Attempt = 2
		b.try(carol)
		b.await(5)
		var to []string
		for _, m := range b.relay.Messages() {
			to = append(to, m.To)
		}
		want(t, "copies", to, []string{"alice@acme.test", "dave@acme.test", "carol@acme.test"})
		want(t, "connections", b.relay.Opened(), 1)
		want(t, "resets", len(b.said("RSET")), 2)
	})
}

// Each refusal has its class, wherever it comes: 5xx about the mail is final,
// 4xx and what is about us or the relay is tried again.
func TestClasses(t *testing.T) {
	for _, c := range []struct {
		verb, reply, want string
		drop              bool
	}{
		{"MAIL", "550 5.7.1 sender refused", "m1/1 REJECTED 550 5.7.1", false},
		{"MAIL", "451 4.7.1 greylisted", "m1/1 RETRYING 451 4.7.1", false},
		{"MAIL", "530 5.7.0 log in first", "m1/1 RETRYING 530 5.7.0", false},
		{"RCPT", "503 5.5.1 MAIL first", "m1/1 RETRYING 503 5.5.1", false},
		{"RCPT", "452 4.2.2 mailbox full", "m1/1 RETRYING 452 4.2.2", false},
		{"DATA", "554 no recipients", "m1/1 REJECTED 554", false},
		{"DATA", "", "m1/1 RETRYING", true},
		{smtptest.Dot, "554 5.6.0 spam", "m1/1 REJECTED 554 5.6.0", false},
		{smtptest.Dot, "452 4.3.1 disk full", "m1/1 RETRYING 452 4.3.1", false},
		{smtptest.Dot, "421 4.3.0 going down", "m1/1 RETRYING 421 4.3.0", true},
		{smtptest.Connect, "554 5.3.2 no service", "m1/1 RETRYING 554 5.3.2", true},
		{smtptest.Connect, "nonsense", "m1/1 RETRYING", true},
		{"EHLO", "", "m1/1 RETRYING", true},
	} {
		t.Run(c.verb+" "+c.reply, func(t *testing.T) {
			in(t, smtptest.Script{Reply: on(c.verb, smtptest.Reply{Text: c.reply, Drop: c.drop})}, nil, func(b *bench) {
				b.try(b.mail("ann@acme.test"))
				r := b.await(1)[0]
				want(t, "result", outcomes([]*outboxv1.Result{r}), c.want)
				if r.GetText() == "" {
					t.Error("the result has no words")
				}
				want(t, "copies", len(b.relay.Messages()), 0)
			})
		})
	}
}

// A relay that is away makes retries, spaced out, and is used as soon as it is
// there; the log says so once each.
func TestRelayAway(t *testing.T) {
	in(t, smtptest.Script{}, nil, func(b *bench) {
		b.relay.Close()
		for i := range 8 {
			b.try(b.mail("ann@acme.test"))
			want(t, "result", b.await(i + 1)[i].GetOutcome(), retrying)
		}
		// 1+2+4+8+16+30+30 s, each give or take a quarter.
		if d := b.since(); d < 68*time.Second || d > 114*time.Second {
			t.Errorf("eight tries took %v", d)
		}
		b.listen(smtptest.Script{})
		b.try(b.mail("ann@acme.test"))
		want(t, "result", b.await(9)[8].GetOutcome(), sent)
		if l := b.log.String(); strings.Count(l, "cannot be reached") != 1 || strings.Count(l, "usable again") != 1 {
			t.Errorf("log:\n%s", l)
		}
	})
}

// Failures at once on several connections are one failure.
func TestFailuresAtOnce(t *testing.T) {
	in(t, smtptest.Script{Reply: on(smtptest.Connect, smtptest.Reply{})}, func(c *Config) { c.Connections = 6 }, func(b *bench) {
		for i := range 6 {
			m := b.mail("ann@acme.test")
			m.AccountId = fmt.Sprint("account", i)
			b.try(m)
		}
		b.await(6)
		want(t, "connections", b.relay.Opened(), 6)
		want(t, "time", b.since(), 30*time.Second)
		b.relay.Close()
		b.listen(smtptest.Script{})
		b.try(b.mail("ann@acme.test"))
		b.await(7)
		if d := b.since(); d > 32*time.Second {
			t.Errorf("the next connection came after %v, want about 31 s", d)
		}
	})
}

// A relay that accepts and says nothing holds an attempt for as long as the
// settings say, at each step, and the result is never uncertain before the dot.
func TestHangingRelay(t *testing.T) {
	for verb, limit := range map[string]time.Duration{
		smtptest.Connect: 30 * time.Second, "EHLO": 30 * time.Second, "MAIL": time.Minute, "RCPT": time.Minute, "DATA": time.Minute,
	} {
		t.Run(verb, func(t *testing.T) {
			in(t, smtptest.Script{Reply: on(verb, smtptest.Reply{})}, nil, func(b *bench) {
				b.try(b.mail("ann@acme.test"))
				want(t, "result", outcomes(b.await(1)), "m1/1 RETRYING")
				want(t, "time", b.since(), limit)
				want(t, "connections left", b.relay.Open(), 0)
			})
		})
	}
}

// Connecting has one limit in all, whatever the relay's rhythm.
func TestSlowLogin(t *testing.T) {
	script := smtptest.Script{Extensions: []string{"AUTH PLAIN"}, Reply: func(e smtptest.Event) *smtptest.Reply {
		switch e.Verb {
		case smtptest.Connect:
			return &smtptest.Reply{Text: "220 hello", After: 20 * time.Second}
		case "AUTH":
			return &smtptest.Reply{Text: "235 welcome", After: 20 * time.Second}
		}
		return nil
	}}
	in(t, script, func(c *Config) { c.Username, c.Password = "u", "p" }, func(b *bench) {
		b.try(b.mail("ann@acme.test"))
		want(t, "result", outcomes(b.await(1)), "m1/1 RETRYING")
		want(t, "time", b.since(), 30*time.Second)
	})
}

// A slow account delays itself only: with all its mails hanging, another's goes
// at once.
func TestFairShares(t *testing.T) {
	script := smtptest.Script{Reply: func(e smtptest.Event) *smtptest.Reply {
		if e.Verb == "RCPT" && e.Rcpt == "slow@acme.test" {
			return &smtptest.Reply{Text: "250 ok", After: 50 * time.Second}
		}
		return nil
	}}
	in(t, script, func(c *Config) { c.Connections = 3 }, func(b *bench) {
		for range 20 {
			b.try(b.mail("slow@acme.test"))
		}
		time.Sleep(10 * time.Second)
		other := b.mail("ann@other.test")
		other.AccountId = "other"
		b.try(other)
		want(t, "first result", outcomes(b.await(1)), "m21/1 SENT 250 2.0.0")
		want(t, "time", b.since(), 10*time.Second)
		for _, r := range b.await(21) {
			want(t, "outcome of "+r.GetMailId(), r.GetOutcome(), sent)
		}
		want(t, "time of all", b.since(), 500*time.Second)
		want(t, "connections", b.relay.Opened(), 3)
	})
}

// TLS required and not offered: neither login nor mail leaves us.
func TestTLSNotOffered(t *testing.T) {
	in(t, smtptest.Script{Extensions: []string{"AUTH PLAIN"}}, func(c *Config) {
		c.TLS, c.Username, c.Password = TLSRequired, "u", "secret"
	}, func(b *bench) {
		b.try(b.mail("ann@acme.test"))
		r := b.await(1)[0]
		want(t, "result", outcomes([]*outboxv1.Result{r}), "m1/1 RETRYING")
		if !strings.Contains(r.GetText(), "STARTTLS") {
			t.Errorf("text %q does not name the cause", r.GetText())
		}
		want(t, "logins and mails", len(b.said("AUTH"))+len(b.said("MAIL")), 0)
	})
}

// A certificate that is not to be trusted, in whatever way, gets neither login
// nor mail; one that is gets both, encrypted.
func TestCertificates(t *testing.T) {
	for _, c := range []struct {
		name, host string
		life       time.Duration
		known      bool
		tls        string
		outcome    outboxv1.Result_Outcome
	}{
		{"good", "localhost", time.Hour, true, TLSRequired, sent},
		{"good, implicit", "localhost", time.Hour, true, TLSImplicit, sent},
		{"good, opportunistic", "localhost", time.Hour, true, TLSOpportunistic, sent},
		{"expired", "localhost", -time.Hour, true, TLSRequired, retrying},
		{"of another host", "relay.test", time.Hour, true, TLSRequired, retrying},
		{"of an unknown authority", "localhost", time.Hour, false, TLSRequired, retrying},
		{"of an unknown authority, implicit", "localhost", time.Hour, false, TLSImplicit, retrying},
		{"of an unknown authority, opportunistic", "localhost", time.Hour, false, TLSOpportunistic, retrying},
	} {
		t.Run(c.name, func(t *testing.T) {
			script := smtptest.Script{Extensions: []string{"AUTH LOGIN PLAIN"}, Implicit: c.tls == TLSImplicit}
			var cert *smtptest.Certificate
			synctest.Test(t, func(t *testing.T) { // for the clock: that of the bubble below
				var err error
				if cert, err = smtptest.NewCertificate(c.host, c.life); err != nil {
					t.Fatal(err)
				}
			})
			script.Certificate = cert
			file := filepath.Join(t.TempDir(), "ca.pem")
			if err := os.WriteFile(file, cert.PEM, 0o600); err != nil {
				t.Fatal(err)
			}
			in(t, script, func(cfg *Config) {
				cfg.TLS, cfg.Username, cfg.Password = c.tls, "u", "secret"
				if c.known {
					cfg.CA = file
				}
			}, func(b *bench) {
				b.try(b.mail("ann@acme.test"))
				want(t, "outcome", b.await(1)[0].GetOutcome(), c.outcome)
				if c.outcome == sent {
					want(t, "logins", b.relay.Logins(), []string{"u:secret"})
					want(t, "encrypted", b.relay.Messages()[0].TLS, true)
				} else {
					want(t, "logins and mails", len(b.said("AUTH"))+len(b.said("MAIL")), 0)
				}
				if strings.Contains(b.log.String(), "secret") {
					t.Errorf("the password was logged:\n%s", b.log)
				}
			})
		})
	}
}

// Opportunistic without an offer sends in the clear, but a password only where
// it cannot be read.
func TestOpportunistic(t *testing.T) {
	in(t, smtptest.Script{}, func(c *Config) { c.TLS = TLSOpportunistic }, func(b *bench) {
		b.try(b.mail("ann@acme.test"))
		want(t, "result", outcomes(b.await(1)), "m1/1 SENT 250 2.0.0")
	})
	for host, want := range map[string]bool{"localhost": true, "127.0.0.1": true, "relay.test": false} {
		if got := loopback(host); got != want {
			t.Errorf("loopback(%q) = %v", host, got)
		}
	}
	l := login{user: "u", password: "secret", host: "relay.test"}
	if _, out, err := l.Start(&smtp.ServerInfo{Name: "relay.test", Auth: []string{"PLAIN", "LOGIN"}}); err == nil || bytes.Contains(out, []byte("secret")) {
		t.Errorf("login in the clear to another machine: %q, %v", out, err)
	}
}

// A refused login is no refusal of the mail: it is kept, the operator is told
// once, and the relay is left alone for a while.
func TestLoginRefused(t *testing.T) {
	script := smtptest.Script{Extensions: []string{"AUTH PLAIN"}, Reply: on("AUTH", smtptest.Reply{Text: "535 5.7.8 u@site.test: wrong"})}
	in(t, script, func(c *Config) { c.Username, c.Password = "u@site.test", "secret" }, func(b *bench) {
		b.try(b.mail("ann@acme.test"))
		want(t, "result", outcomes(b.await(1)), "m1/1 RETRYING 535 5.7.8")
		b.try(b.mail("ann@acme.test"))
		b.await(2)
		if d := b.since(); d < 45*time.Second {
			t.Errorf("the second login came after %v", d)
		}
		if l := b.log.String(); strings.Count(l, "level=ERROR") != 1 || strings.Contains(l, "@") || strings.Contains(l, "secret") {
			t.Errorf("log:\n%s", l)
		}
		want(t, "mails", len(b.said("MAIL")), 0)
	})
}

// Nothing from data begins a line of the header, and what cannot be an address
// or an id is refused for good.
func TestHeaderInjection(t *testing.T) {
	in(t, smtptest.Script{}, nil, func(b *bench) {
		m := b.mail("ann@acme.test")
		m.RecipientName = "Ann\r\nBcc: eve@evil.test\r\n\r\nbody"
		m.Items[0].DeviceName = "Cam\r\nX-Evil: 1\n.\r\n\u2028X-Evil: 2"
		b.try(m)
		b.await(1)
		data := b.relay.Messages()[0].Data
		head, _, _ := strings.Cut(data, "\r\n\r\n")
		for _, l := range strings.Split(head, "\r\n") {
			if strings.HasPrefix(l, "Bcc") || strings.HasPrefix(l, "X-Evil") {
				t.Errorf("header:\n%s", head)
			}
		}
		if p := b.read(data); strings.ContainsAny(p.Subject+p.To, "\r\n\u2028") {
			t.Errorf("decoded: %q, %q", p.Subject, p.To)
		}
		n := 1
		for _, address := range []string{"", "ann", "ann@acme.test\r\nRCPT TO:<eve@evil.test>", "ann@acme.test>\r\nDATA", "a@b.test, c@d.test", "x@bad..test", "x@\u202e.test"} {
			n++
			b.try(b.mail(address))
			r := b.await(n)[n-1]
			if r.GetOutcome() != rejected || r.GetEnhancedCode() != "5.1.3" {
				t.Errorf("%q: %v", address, r)
			}
		}
		for _, id := range []string{"", "a b@c", "a@c>\r\nX: y", "<a@c>", "ä@c"} {
			n++
			m := b.mail("ann@acme.test")
			m.MessageId = id
			b.try(m)
			want(t, "id "+id, b.await(n)[n-1].GetOutcome(), rejected)
		}
		for _, c := range b.relay.Commands() {
			if strings.Contains(c, "evil") {
				t.Errorf("command %q", c)
			}
		}
	})
}

// A mail that cannot be rendered is given up, and the operator is told.
func TestNotRendered(t *testing.T) {
	in(t, smtptest.Script{}, nil, func(b *bench) {
		m := b.mail("ann@acme.test")
		m.Items = nil
		b.try(m)
		r := b.await(1)[0]
		want(t, "result", outcomes([]*outboxv1.Result{r})+" "+r.GetText(), "m1/1 REJECTED 5.6.0 nothing to say")
		want(t, "connections", b.relay.Opened(), 0)
		if !strings.Contains(b.log.String(), "level=ERROR") {
			t.Errorf("log: %s", b.log)
		}
	})
}

// SMTPUTF8 is asked for only when the address needs it: a domain is written in
// its ASCII form, and where the relay cannot do it the mail is refused for good.
func TestInternationalAddresses(t *testing.T) {
	for _, c := range []struct {
		address, offered string
		want             string
	}{
		{"ann@acme.test", "SMTPUTF8", "ann@acme.test "},
		{"ann@türen.test", "SMTPUTF8", "ann@xn--tren-0ra.test "},
		{"ann@türen.test", "8BITMIME", "ann@xn--tren-0ra.test BODY=8BITMIME"},
		{"jürgen@türen.test", "SMTPUTF8", "jürgen@xn--tren-0ra.test SMTPUTF8"},
		{"jürgen@acme.test", "8BITMIME", "REJECTED 5.6.7"},
		{"\"ann b\"@acme.test", "8BITMIME", "\"ann b\"@acme.test BODY=8BITMIME"},
	} {
		t.Run(c.address+" "+c.offered, func(t *testing.T) {
			in(t, smtptest.Script{Extensions: []string{c.offered}}, nil, func(b *bench) {
				b.try(b.mail(c.address))
				r := b.await(1)[0]
				got := r.GetOutcome().String() + " " + r.GetEnhancedCode()
				if msgs := b.relay.Messages(); len(msgs) == 1 {
					got = msgs[0].To + " " + msgs[0].Params
				}
				want(t, "sent", got, c.want)
			})
		})
	}
}

// A mail whose lease has ended is not begun; one whose lease ends at RCPT gets
// no DATA; one whose lease ends in the content gets no dot. The log is away
// meanwhile, so that no renewal keeps it.
func TestLease(t *testing.T) {
	for name, c := range map[string]struct {
		reply func(smtptest.Event) *smtptest.Reply
		lease time.Duration
		want  []string
	}{
		"over before":  {nil, -time.Second, nil},
		"over at MAIL": {on(smtptest.Connect, smtptest.Reply{Text: "220 hello", After: 20 * time.Second}), 10 * time.Second, []string{"EHLO"}},
		"over at RCPT": {on("RCPT", smtptest.Reply{Text: "250 ok", After: 40 * time.Second}), 30 * time.Second, []string{"EHLO", "MAIL", "RCPT", "RSET"}},
		"deaf":         {on("DATA", smtptest.Reply{Text: "354 go", Deaf: true}), 30 * time.Second, []string{"EHLO", "MAIL", "RCPT", "DATA"}},
		"over at DATA": {on("DATA", smtptest.Reply{Text: "354 go", After: 40 * time.Second}), 30 * time.Second, []string{"EHLO", "MAIL", "RCPT", "DATA"}},
	} {
		t.Run(name, func(t *testing.T) {
			in(t, smtptest.Script{Reply: c.reply}, nil, func(b *bench) {
				b.facts.fail = func() error {
					if time.Since(b.start) < 50*time.Second {
						return errors.New("the log is away")
					}
					return nil
				}
				b.Send(Attempt{Mail: b.mail("ann@acme.test"), LeaseUntil: time.Now().Add(c.lease), ExpireAt: time.Now().Add(late)})
				r := b.await(1)[0]
				want(t, "outcome", r.GetOutcome(), retrying)
				if d := b.since(); d > time.Minute {
					t.Errorf("given up after %v", d)
				}
				if !strings.Contains(r.GetText(), "lease") && !strings.Contains(r.GetText(), "content") {
					t.Errorf("text %q", r.GetText())
				}
				var verbs []string
				for _, l := range b.relay.Commands() {
					_, l, _ = strings.Cut(l, ": ")
					verb, _, _ := strings.Cut(l, " ")
					verbs = append(verbs, verb)
				}
				want(t, "commands", verbs, c.want)
				want(t, "renewals", len(b.facts.renewals), 0)
				want(t, "copies", len(b.relay.Messages()), 0)
			})
		})
	}
}

// A renewal that came into the log only after the lease may have ended keeps
// nothing: the mail is given up before DATA.
func TestLateRenewal(t *testing.T) {
	in(t, smtptest.Script{Reply: on("RCPT", smtptest.Reply{Text: "250 ok", After: 55 * time.Second})}, nil, func(b *bench) {
		b.facts.slow = 15 * time.Second
		b.Send(Attempt{Mail: b.mail("ann@acme.test"), LeaseUntil: time.Now().Add(10 * time.Second), ExpireAt: time.Now().Add(late)})
		want(t, "result", outcomes(b.await(1)), "m1/1 RETRYING")
		want(t, "renewals", len(b.facts.renewals), 1)
		want(t, "DATA", len(b.said("DATA")), 0)
	})
}

// No renewal follows the result, not even one that was on its way.
func TestNoRenewalAfterResult(t *testing.T) {
	in(t, smtptest.Script{Reply: on("RCPT", smtptest.Reply{Text: "250 ok", After: 25 * time.Second})}, nil, func(b *bench) {
		b.facts.slow, b.facts.slowResult = 15*time.Second, time.Minute
		b.try(b.mail("ann@acme.test"))
		b.await(1)
		time.Sleep(time.Hour)
		want(t, "renewals", len(b.facts.renewals), 0)
	})
}

// Accounts take turns, each in its own order, and none has more than its share.
func TestTurns(t *testing.T) {
	q := newQueue(2)
	for i, account := range []string{"a", "a", "a", "b", "b", "c"} {
		q.push(&job{mail: &outboxv1.Mail{AccountId: account, MailId: fmt.Sprint(account, i)}})
	}
	var got []string
	var held []*job
	for range 7 {
		j := q.pop()
		if j == nil {
			got = append(got, "none")
			for _, h := range held {
				q.done(h)
			}
			continue
		}
		held = append(held, j)
		got = append(got, j.mail.GetMailId())
	}
	want(t, "order", got, []string{"a0", "b3", "c5", "a1", "b4", "none", "a2"})
	want(t, "left", len(q.empty()), 0)
}

// A mail that waits for its turn for long keeps its lease and is sent.
func TestLeaseInQueue(t *testing.T) {
	in(t, smtptest.Script{Reply: on("RCPT", smtptest.Reply{Text: "250 ok", After: 50 * time.Second})}, nil, func(b *bench) {
		for range 5 {
			b.try(b.mail("ann@acme.test"))
		}
		for _, r := range b.await(5) {
			want(t, "outcome of "+r.GetMailId(), r.GetOutcome(), sent)
		}
	})
}

// A mail whose time ends while it waits, for its turn or for the relay to be
// tried again, is not begun, whatever its lease.
func TestTooLateInQueue(t *testing.T) {
	for name, c := range map[string]struct {
		reply func(smtptest.Event) *smtptest.Reply
		want  string
	}{
		"turn":  {on("RCPT", smtptest.Reply{Text: "250 ok", After: 50 * time.Second}), "m1/1 SENT 250 2.0.0, m2/1 SENT 250 2.0.0, m3/1 RETRYING"},
		"relay": {on("MAIL", smtptest.Reply{}), "m1/1 RETRYING, m2/1 RETRYING, m3/1 RETRYING"},
	} {
		t.Run(name, func(t *testing.T) {
			in(t, smtptest.Script{Reply: c.reply}, nil, func(b *bench) {
				for range 3 {
					b.Send(Attempt{Mail: b.mail("ann@acme.test"), LeaseUntil: time.Now().Add(DefaultLease), ExpireAt: b.start.Add(100 * time.Second)})
				}
				rs := b.await(3)
				slices.SortFunc(rs, func(a, b *outboxv1.Result) int { return strings.Compare(a.GetMailId(), b.GetMailId()) })
				want(t, "results", outcomes(rs), c.want)
				want(t, "begun", len(b.said("MAIL")), 2)
				want(t, "text of the last", rs[2].GetText(), "not begun: it is too late for it")
			})
		})
	}
}

// The dot is not sent after the lease, even where all of the content was.
func TestLeaseBeforeDot(t *testing.T) {
	in(t, smtptest.Script{}, nil, func(b *bench) {
		c, err := b.dial(b.hard)
		if err != nil {
			t.Fatal(err)
		}
		j := &job{mail: b.mail("ann@acme.test"), lease: time.Now().Add(DefaultLease), expire: time.Now().Add(late)}
		msg, err := b.compose(j.mail, "")
		if err == nil {
			err = errors.Join(c.envelope(b.from.Address, msg), c.data(), c.content(msg.data, j.until()))
		}
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(DefaultLease)
		w := &worker{Mailer: b.Mailer, conn: c}
		want(t, "result", outcomes([]*outboxv1.Result{w.finish(j, c)}), "m1/1 RETRYING")
		synctest.Wait()
		want(t, "copies", len(b.relay.Messages()), 0)
		want(t, "connections left", b.relay.Open(), 0)
	})
}

// A result is appended however long the log is away, once, and nobody else
// waits for that.
func TestFactsRetried(t *testing.T) {
	in(t, smtptest.Script{}, nil, func(b *bench) {
		b.facts.fail = func() error {
			if time.Since(b.start) < 10*time.Minute {
				return errors.New("the log is away")
			}
			return nil
		}
		for range 3 {
			b.try(b.mail("ann@acme.test"))
		}
		synctest.Wait()
		want(t, "sent at once", len(b.relay.Messages()), 3)
		want(t, "results", len(b.await(3)), 3)
		time.Sleep(time.Hour)
		want(t, "results in the end", len(b.facts.results), 3)
		want(t, "copies", len(b.relay.Messages()), 3)
	})
}

// Stop: what is under way is finished, what waits is given back not begun, what
// comes later too, and Run returns with every result appended.
func TestStop(t *testing.T) {
	in(t, smtptest.Script{Reply: on(smtptest.Dot, smtptest.Reply{Text: "250 2.0.0 ok", After: 10 * time.Second})}, nil, func(b *bench) {
		for range 3 {
			b.try(b.mail("ann@acme.test"))
		}
		synctest.Wait()
		b.stop()
		synctest.Wait()
		b.try(b.mail("late@acme.test"))
		<-b.ended
		want(t, "time", b.since(), 10*time.Second)
		got := slices.Sorted(strings.SplitSeq(outcomes(b.facts.results), ", "))
		want(t, "results", got, []string{"m1/1 SENT 250 2.0.0", "m2/1 RETRYING", "m3/1 RETRYING", "m4/1 RETRYING"})
		for _, r := range b.facts.results {
			if r.GetOutcome() == retrying && r.GetText() != "not begun: the gateway stops" {
				t.Errorf("text %q", r.GetText())
			}
		}
		want(t, "goodbye", len(b.said("QUIT")), 1)
		b.try(b.mail("after@acme.test"))
		want(t, "results in the end", len(b.facts.results), 4)
	})
}

// Stop with a relay that does not answer takes StopTimeout; a mail whose dot
// was sent is uncertain then, another is not.
func TestStopHanging(t *testing.T) {
	for verb, outcome := range map[string]string{smtptest.Dot: "m1/1 UNCERTAIN", "MAIL": "m1/1 RETRYING", smtptest.Connect: "m1/1 RETRYING"} {
		t.Run(verb, func(t *testing.T) {
			in(t, smtptest.Script{Reply: on(verb, smtptest.Reply{})}, nil, func(b *bench) {
				b.try(b.mail("ann@acme.test"))
				synctest.Wait()
				b.stop()
				<-b.ended
				want(t, "time", b.since(), 20*time.Second)
				want(t, "results", outcomes(b.facts.results), outcome)
			})
		})
	}
}

// With the log away for good, Run still ends, and says what it could not append.
func TestStopWithoutLog(t *testing.T) {
	in(t, smtptest.Script{}, nil, func(b *bench) {
		b.facts.fail = func() error { return errors.New("the log is away") }
		b.try(b.mail("ann@acme.test"))
		synctest.Wait()
		b.stop()
		<-b.ended
		want(t, "time", b.since(), 5*time.Second)
		if l := b.log.String(); !strings.Contains(l, "level=ERROR") || !strings.Contains(l, "outcome=SENT") {
			t.Errorf("log:\n%s", l)
		}
	})
}

// Mails in a row share a connection, and one without work is closed politely.
func TestConnectionKept(t *testing.T) {
	in(t, smtptest.Script{}, func(c *Config) { c.IdleTimeout = 30 * time.Second }, func(b *bench) {
		for i := range 5 {
			b.try(b.mail("ann@acme.test"))
			b.await(i + 1)
			time.Sleep(20 * time.Second)
		}
		want(t, "connections", b.relay.Opened(), 1)
		want(t, "commands for a mail", len(b.relay.Commands()), 1+5*3)
		time.Sleep(15 * time.Second)
		want(t, "goodbyes", b.said("QUIT"), []string{"1: QUIT"})
		want(t, "open", b.relay.Open(), 0)
	})
}

// The span of an attempt is in the trace of the first item's notification,
// linked to the others', and says what an operator asks.
func TestSpan(t *testing.T) {
	in(t, smtptest.Script{Reply: on("RCPT", smtptest.Reply{Text: "550 5.1.1 ann@acme.test unknown"})}, nil, func(b *bench) {
		m := b.mail("ann@acme.test")
		m.Items[0].Traceparent = traceparent
		m.Items = append(m.Items, &outboxv1.Mail_Item{Traceparent: "00-11111111111111111111111111111111-2222222222222222-01", Notification: m.Items[0].Notification})
		b.try(m)
		b.await(1)
		spans := b.spans.Ended()
		if len(spans) != 1 {
			t.Fatalf("%d spans", len(spans))
		}
		s := spans[0]
		want(t, "trace", s.SpanContext().TraceID().String(), "0af7651916cd43dd8448eb211c80319c")
		want(t, "parent", s.Parent().SpanID().String(), "b7ad6b7169203331")
		want(t, "link", s.Links()[0].SpanContext.TraceID().String(), "11111111111111111111111111111111")
		got := make(map[string]string)
		for _, a := range s.Attributes() {
			got[string(a.Key)] = a.Value.String()
			if strings.Contains(a.Value.String(), "@") {
				t.Errorf("an address is in %s", a.Key)
			}
		}
		want(t, "attributes", got, map[string]string{
			"server.address": "localhost", "server.port": "2525", "network.protocol.name": "smtp",
			"tocsin.mail.id": "m1", "tocsin.account.id": "acme", "tocsin.mail.attempt": "1", "tocsin.mail.outcome": "REJECTED",
			"tocsin.notification.type": "OFFLINE", "tocsin.notification.ids": `["nm1","nm1"]`,
			"tocsin.etag.occur_time": "1999-12-31T23:54:59.000Z", "tocsin.alert_delay": "301", "tocsin.alert_delay_without_hold": "1",
			"smtp.reply.code": "550", "smtp.reply.enhanced_code": "5.1.1", "error.type": "REJECTED",
		})
	})
}

// A wrong setting is named with what would be right.
func TestValidate(t *testing.T) {
	good := Config{
		Host: "relay.test", TLS: TLSRequired, From: "Tocsin <tocsin@site.test>", Connections: 4,
		ConnectTimeout: 1, CommandTimeout: 1, DataTimeout: 1, ReplyTimeout: 1, IdleTimeout: 1, StopTimeout: 1,
	}
	if err := good.Validate(); err != nil {
		t.Fatal(err)
	}
	for want, change := range map[string]func(*Config){
		"smtp.host":          func(c *Config) { c.Host = "smtp://relay.test:25" },
		"into smtp.port":     func(c *Config) { c.Host = "relay.test:25" },
		"smtp.port":          func(c *Config) { c.Port = 70000 },
		"smtp.tls":           func(c *Config) { c.TLS = "yes" },
		"smtp.password":      func(c *Config) { c.Username = "u" },
		"no smtp.username":   func(c *Config) { c.Password = "p" },
		"smtp.from":          func(c *Config) { c.From = "Tocsin" },
		"ASCII form":         func(c *Config) { c.From = "tocsin@türen.test" },
		"smtp.connections":   func(c *Config) { c.Connections = 0 },
		"smtp.reply-timeout": func(c *Config) { c.ReplyTimeout = 0 },
		"smtp.hello":         func(c *Config) { c.Hello = "a b" },
	} {
		c := good
		change(&c)
		if err := c.Validate(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want one with %q", err, want)
		}
	}
	if _, err := New(Config{}, Options{}); err == nil {
		t.Error("an empty Config was taken")
	}
	c := good
	c.Host = ""
	if _, err := New(c, Options{}); err == nil || !strings.Contains(err.Error(), "smtp.host") {
		t.Errorf("without a host: %v", err)
	}
	for tls, port := range map[string]int{TLSRequired: 587, TLSImplicit: 465, TLSNone: 587} {
		c.TLS = tls
		if got := c.port(); got != port {
			t.Errorf("port with %s is %d, want %d", tls, got, port)
		}
	}
}

// A reply is kept in one line of at most 512 bytes, cut between characters, and
// its enhanced code only if it is one of its class.
func TestReply(t *testing.T) {
	long := clip(strings.Repeat("ü", 400))
	if len(long) > 512 || len(long) < 510 || !strings.HasSuffix(long, "ü") {
		t.Errorf("%d bytes, ends %q", len(long), long[len(long)-4:])
	}
	want(t, "line", clip("a\r\nb\x00c\xff"), "a b c?")
	for text, code := range map[string]string{"5.1.1 no": "5.1.1", "4.1.1 no": "", "5.1": "", "5.x.1 no": "", "no": "", "5.7.1": "5.7.1", "5.1234.1": ""} {
		want(t, text, enhanced(550, text), code)
	}
}
