// Package mailer speaks to the mail relay. It is given attempts, whose intents
// with a lease are in the log already, makes each one, and appends its result
// to the log as a fact (rules, section 10).
//
// It owns the connections to the relay and the attempts that it was given,
// until their results are in the log. It does not decide who gets a mail, when
// it is tried again or when that ends: the account machine does. It keeps
// nothing over a restart.
//
// Invariants: a mail is never begun, and its content never finished, after its
// lease ended by our clock; none is begun after its time is over. An attempt has one result. Whatever the relay does,
// an attempt ends within the sum of the timeouts of Config, unless the log
// takes no facts.
//
//	Send                 a worker is free, its lease holds
//	    ──► queued ──────────────────────────────────────► MAIL RCPT DATA . ──► result ──► fact
//	          │                                                                  ▲
//	          └──────── its lease or time ended, or we stop: not begun ──────────┘
//
// The queue has no bound of its own: it holds attempts that have an intent in
// the log, and the account machine bounds those, for each account and each
// partition. Accounts take turns in it, and one account never has all workers
// where there are several, so that recipients whose mail is slow delay their own
// account; with one worker they delay everybody. A relay that
// hangs holds up its own workers; a relay that cannot be reached is tried by
// each worker at most once per pause (1 s, doubling to 30 s).
package mailer

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/mail"
	"os"
	"strings"
	"sync"
	"time"

	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/trace"
	"google.golang.org/protobuf/types/known/timestamppb"

	outboxv1 "github.com/tocsin/tocsin/proto/gen/tocsin/outbox/v1"
)

// scope names what reports traces and metrics here.
const scope = "github.com/tocsin/tocsin/services/gateway/internal/mailer"

// DefaultLease is the lease of an intent and of each renewal (rules, section 10).
const DefaultLease = time.Minute

// Facts takes what happened into the account's log. Both return once it is
// there; an error means that it may not be, and to try again.
type Facts interface {
	Result(context.Context, *outboxv1.Result) error
	Renew(context.Context, *outboxv1.Renewal) error
}

// Content is what a mail says, as package render has it.
type Content struct {
	Subject    string
	Text, HTML string
}

// Attempt is one try to send a mail, whose intent is in the log.
type Attempt struct {
	Mail *outboxv1.Mail
	// LeaseUntil is when the intent's lease ends, by this process's clock.
	LeaseUntil time.Time
	// ExpireAt is when it is too late to begin, by the same clock.
	ExpireAt time.Time
}

// Options are what a Mailer works with.
type Options struct {
	Log    *slog.Logger
	Tracer trace.TracerProvider
	Meter  metric.MeterProvider
	// Dial connects to the relay; nil is the ordinary network.
	Dial  func(ctx context.Context, network, address string) (net.Conn, error)
	Facts Facts
	// Render says what a mail says. It is called once for each attempt.
	Render func(*outboxv1.Mail) (Content, error)
	// Lease is the length of a renewal's lease; 0 is DefaultLease.
	Lease time.Duration
}

// Mailer sends mail. Send may be called at any time from anywhere; Run once.
type Mailer struct {
	Options
	cfg       Config
	from      *mail.Address
	roots     *x509.CertPool
	tracer    trace.Tracer
	uncertain metric.Int64Counter

	// hard ends what is under way: connections are closed.
	hard context.Context
	// kill ends hard.
	kill context.CancelFunc
	// told ends the efforts to append results.
	told   context.Context
	untell context.CancelFunc
	// stop is closed when nothing more is to be begun.
	stop chan struct{}
	// wake has a value for each worker that may find work.
	wake  chan struct{}
	relay pause

	mu       sync.Mutex
	queue    queue
	stopping bool
	closed   bool           // no more lives
	lives    sync.WaitGroup // one for each attempt whose result is not in the log
}

// New makes a Mailer; it connects to nothing yet.
func New(cfg Config, opt Options) (*Mailer, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	if cfg.Host == "" {
		return nil, fmt.Errorf("smtp.host: name the mail relay")
	}
	from, err := cfg.sender()
	if err != nil {
		return nil, err
	}
	if opt.Dial == nil {
		opt.Dial = new(net.Dialer).DialContext
	}
	if opt.Lease == 0 {
		opt.Lease = DefaultLease
	}
	m := &Mailer{
		Options: opt, cfg: cfg, from: from,
		tracer: opt.Tracer.Tracer(scope),
		stop:   make(chan struct{}),
		wake:   make(chan struct{}, cfg.Connections),
		queue:  newQueue(max(1, cfg.Connections-1)),
	}
	if m.roots, err = trusted(cfg.CA); err != nil {
		return nil, err
	}
	m.uncertain, err = opt.Meter.Meter(scope).Int64Counter("tocsin_smtp_uncertain_total",
		metric.WithDescription("Attempts whose final dot was sent and whose answer was not read."))
	if err != nil {
		return nil, fmt.Errorf("make the mailer's metrics: %w", err)
	}
	m.hard, m.kill = context.WithCancel(context.Background())
	m.told, m.untell = context.WithCancel(context.Background())
	return m, nil
}

// trusted reads the certificates in file; nil are the system's.
func trusted(file string) (*x509.CertPool, error) {
	if file == "" {
		return nil, nil
	}
	pem, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("smtp.tls-ca: %w", err)
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(pem) {
		return nil, fmt.Errorf("smtp.tls-ca: %s has no certificate in PEM form", file)
	}
	return pool, nil
}

func (m *Mailer) tlsConfig() *tls.Config {
	return &tls.Config{ServerName: m.cfg.Host, RootCAs: m.roots, MinVersion: tls.VersionTLS12}
}

// job is an attempt here.
type job struct {
	mail   *outboxv1.Mail
	expire time.Time
	// done gets the result, once.
	done chan *outboxv1.Result

	mu    sync.Mutex
	lease time.Time
}

// held says whether the lease has not ended.
func (j *job) held() bool { return time.Now().Before(j.until()) }

// over says why j must not begin now; "" is that it may.
func (j *job) over() string {
	switch {
	case !j.held():
		return "its lease ended"
	case !time.Now().Before(j.expire):
		return "it is too late for it"
	}
	return ""
}

func (j *job) until() time.Time {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.lease
}

// result is how j ended.
func (m *Mailer) result(j *job, o outboxv1.Result_Outcome, r reply) *outboxv1.Result {
	return &outboxv1.Result{
		AccountId: j.mail.GetAccountId(), MailId: j.mail.GetMailId(), Attempt: j.mail.GetAttempt(),
		Outcome: o, ReplyCode: uint32(r.code), EnhancedCode: r.enhanced, Text: r.text,
		Relay: m.cfg.relay(), EndTime: timestamppb.Now(),
	}
}

func (m *Mailer) notBegun(j *job, why string) *outboxv1.Result {
	return m.result(j, outboxv1.Result_RETRYING, reply{text: "not begun: " + why})
}

// Send takes an attempt. It never blocks. From now on its lease is renewed, and
// its result will be appended by Facts, also when it is never begun. Only
// after Run has returned is an attempt dropped: its lease ends, and the log
// knows what that means.
func (m *Mailer) Send(a Attempt) {
	j := &job{mail: a.Mail, lease: a.LeaseUntil, expire: a.ExpireAt, done: make(chan *outboxv1.Result, 1)}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed {
		m.Log.Debug("attempt after the end of the mailer", "account_id", a.Mail.GetAccountId(), "mail_id", a.Mail.GetMailId())
		return
	}
	m.lives.Go(func() { m.live(j) })
	if m.stopping {
		j.done <- m.notBegun(j, "the gateway stops")
		return
	}
	m.queue.push(j)
	select {
	case m.wake <- struct{}{}:
	default: // every worker will look anyway
	}
}

// Run makes the attempts until ctx ends. Then it begins none, gives those under
// way Config.StopTimeout, appends the results and returns nil. Those still
// waiting for the relay's last word by then are uncertain.
func (m *Mailer) Run(ctx context.Context) error {
	var workers sync.WaitGroup
	for range m.cfg.Connections {
		workers.Go((&worker{Mailer: m}).run)
	}
	<-ctx.Done()

	m.mu.Lock()
	m.stopping = true
	waiting := m.queue.empty()
	m.mu.Unlock()
	close(m.stop)
	for _, j := range waiting {
		j.done <- m.notBegun(j, "the gateway stops")
	}
	kill := time.AfterFunc(m.cfg.StopTimeout, m.kill)
	workers.Wait()
	kill.Stop()
	m.kill()

	m.mu.Lock()
	m.closed = true
	m.mu.Unlock()
	untell := time.AfterFunc(tellTimeout, m.untell)
	m.lives.Wait()
	untell.Stop()
	m.untell()
	return nil
}

// How facts are appended.
const (
	// tellTimeout is how long results may take to be appended after the last
	// attempt ended, when the process stops.
	tellTimeout = 5 * time.Second
	// tellFirst and tellMost are the pauses after a fact was not appended.
	tellFirst = 100 * time.Millisecond
	tellMost  = 5 * time.Second
)

// live renews the lease of j until its result is there, then appends that.
func (m *Mailer) live(j *job) {
	var renewing sync.WaitGroup
	ctx, cancel := context.WithCancel(m.told)
	renewing.Go(func() { m.renew(ctx, j) })
	r := <-j.done
	// A renewal after the result would be a lie.
	cancel()
	renewing.Wait()
	wait := tellFirst
	for {
		err := m.Facts.Result(m.told, r)
		if err == nil {
			return
		}
		if m.told.Err() != nil {
			m.Log.Error("the result of a mail could not be appended before the end; its lease will end and it counts as uncertain",
				"account_id", r.GetAccountId(), "mail_id", r.GetMailId(), "outcome", r.GetOutcome().String(), "err", err)
			return
		}
		m.Log.Warn("the result of a mail could not be appended; trying again",
			"account_id", r.GetAccountId(), "mail_id", r.GetMailId(), "err", err)
		sleep(m.told, jitter(wait))
		wait = min(2*wait, tellMost)
	}
}

// renew keeps the lease of j until ctx ends or the lease does, each time when a
// third of it has passed.
func (m *Mailer) renew(ctx context.Context, j *job) {
	for sleep(ctx, time.Until(j.until())-m.Lease*2/3) {
		for {
			began := time.Now()
			if !j.held() {
				return
			}
			err := m.Facts.Renew(ctx, &outboxv1.Renewal{
				AccountId: j.mail.GetAccountId(), MailId: j.mail.GetMailId(), Attempt: j.mail.GetAttempt()})
			// One that came back only after the lease had ended may have been
			// read too late: the lease stays lost.
			if err == nil && j.held() {
				j.mu.Lock()
				j.lease = began.Add(m.Lease)
				j.mu.Unlock()
			}
			if err == nil || ctx.Err() != nil {
				break
			}
			m.Log.Warn("the lease of a mail could not be renewed; trying again",
				"account_id", j.mail.GetAccountId(), "mail_id", j.mail.GetMailId(), "err", err)
			if !sleep(ctx, jitter(time.Second)) {
				return
			}
		}
	}
}

// sleep is false when ctx ended first.
func sleep(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// jitter spreads d by a quarter either way.
func jitter(d time.Duration) time.Duration {
	return d*3/4 + rand.N(d/2+1)
}

// pause spaces out connections to a relay that cannot be used. The zero value
// is for one of which nothing is known.
type pause struct {
	mu       sync.Mutex
	failures int
	until    time.Time
}

const (
	pauseFirst = time.Second
	pauseMost  = 30 * time.Second
	// pauseLogin is after a refused login, which more attempts may get locked.
	pauseLogin = time.Minute
)

// over is when the relay may be tried.
func (p *pause) over() time.Time {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.until
}

// failed counts a failure, of several at once only one; true is the first
// since the relay was usable.
func (p *pause) failed(least time.Duration) (first bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := time.Now()
	if now.Before(p.until) {
		return false
	}
	wait := pauseMost
	if p.failures < 5 {
		wait = pauseFirst << p.failures
	}
	p.failures++
	p.until = now.Add(jitter(max(wait, least)))
	return p.failures == 1
}

// worked is true if the relay was not usable before.
func (p *pause) worked() (again bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	again = p.failures > 0
	p.failures, p.until = 0, time.Time{}
	return again
}

// oneLine makes s fit for a header.
func oneLine(s string) string {
	return strings.Join(strings.FieldsFunc(s, func(r rune) bool { return r < ' ' || r == 0x7f || r == '\u0085' || r == '\u2028' || r == '\u2029' }), " ")
}

func ascii(s string) bool {
	for i := range len(s) {
		if s[i] >= 0x80 {
			return false
		}
	}
	return true
}
