// Package console is the service for people and their programs: it keeps the
// settings, shows devices, notifications, what became of them and, in `tocsin
// up`, the mails, and pushes changes to the pages that are open.
//
// It joins the packages under internal: follow reads the topics, store keeps
// and writes settings, readmodel keeps what is shown, api and web serve them.
// It decides nothing about devices and sends nothing.
//
// Invariant: all it shows comes from the log; stopped and started it shows the
// same, as far as the log reaches.
package console

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/tocsin/tocsin/services/console/internal/api"
	"github.com/tocsin/tocsin/services/console/internal/follow"
	"github.com/tocsin/tocsin/services/console/internal/readmodel"
	"github.com/tocsin/tocsin/services/console/internal/store"
	"github.com/tocsin/tocsin/services/console/internal/web"
	"github.com/tocsin/tocsin/services/internal/config"
	"github.com/tocsin/tocsin/services/internal/lifecycle"
	"github.com/tocsin/tocsin/services/internal/topic"
)

// Config is the console's own settings.
type Config struct {
	Listen config.Address `name:"console.listen" default:"127.0.0.1:7100" help:"Where the web page and the API are served. Loopback only, because there is no sign-in yet."`
}

// Validate names the first setting that is wrong.
func (c Config) Validate() error {
	if !c.Listen.Loopback() {
		return fmt.Errorf("console.listen: %s can be reached from other machines, and the console has no sign-in yet, so anybody there could change the settings; use 127.0.0.1 or [::1], and from afar an ssh tunnel", c.Listen)
	}
	return nil
}

// Inbox is what mails the web page shows; see package inbox.
type Inbox = web.Inbox

// Option changes what New makes.
type Option func(*Service)

// WithInbox shows an inbox on the page.
func WithInbox(in Inbox) Option { return func(s *Service) { s.inbox = in } }

// WithIngest says where events are sent, for the page's first hint; the
// default is the archiver's own default, http://127.0.0.1:7101.
func WithIngest(url string) Option { return func(s *Service) { s.ingest = url } }

// Service is the console.
type Service struct {
	cfg    Config
	env    lifecycle.Env
	inbox  Inbox
	ingest string

	follower *follow.Follower
	web      *web.Web
	handler  http.Handler
	serving  atomic.Bool
}

var _ lifecycle.Service = (*Service)(nil)

// logTail is how many of the last records of each partition of notifications
// and deliveries are read; ticks and mail results are among them.
const logTail = 20_000

// New makes a console that does nothing yet.
func New(cfg Config, env lifecycle.Env, opts ...Option) (*Service, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	s := &Service{cfg: cfg, env: env, ingest: "http://127.0.0.1:7101"}
	for _, o := range opts {
		o(s)
	}
	topics := topic.New(env.Kafka.TopicPrefix)
	model := readmodel.New(env.Log)
	settings := store.New(env, topics, model.Touch)
	s.follower = follow.New(
		env, model.Touch,
		follow.Source{Topic: topics.AccountSettings.Name, Handle: settings.Record},
		follow.Source{Topic: topics.DeviceState.Name, Handle: model.DeviceState},
		follow.Source{Topic: topics.Notifications.Name, Tail: logTail, Handle: model.Notification},
		follow.Source{Topic: topics.Deliveries.Name, Tail: logTail, Handle: model.Delivery},
	)
	settings.ReadBy(s.follower)
	var err error
	s.web, err = web.New(web.Options{Log: env.Log, Model: model, Names: settings, Inbox: s.inbox, Ready: s.follower.Ready, Ingest: s.ingest})
	if err != nil {
		return nil, err
	}
	mux := http.NewServeMux()
	mux.Handle("/v1/", api.Handler(settings, env.Log))
	mux.Handle("/", s.web)
	s.handler = guard(mux)
	return s, nil
}

// guard keeps other sites' pages in the visitor's browser out: a page that
// writes here across origins is refused, and so is a name that somebody made
// point at this machine (DNS rebinding).
func guard(next http.Handler) http.Handler {
	same := http.NewCrossOriginProtection()
	return same.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !loopbackHost(r.Host) {
			http.Error(w, fmt.Sprintf("this console answers to localhost and 127.0.0.1 only, not to %q", r.Host), http.StatusMisdirectedRequest)
			return
		}
		next.ServeHTTP(w, r)
	}))
}

func loopbackHost(hostport string) bool {
	host, _, err := net.SplitHostPort(hostport)
	if err != nil {
		host = hostport
	}
	if len(host) > 1 && host[0] == '[' {
		host = host[1 : len(host)-1]
	}
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}

// stopTimeout is how long requests under way may take to end.
const stopTimeout = store.WriteTimeout + 2*time.Second

// Run serves until ctx ends.
func (s *Service) Run(ctx context.Context) error {
	ln, err := s.cfg.Listen.Listen(s.env.Net.Listener)
	if err != nil {
		return fmt.Errorf("console: %w", err)
	}
	srv := &http.Server{
		Handler:           s.handler,
		ReadHeaderTimeout: 5 * time.Second,
		ReadTimeout:       30 * time.Second,
		IdleTimeout:       2 * time.Minute,
		MaxHeaderBytes:    32 << 10,
		ErrorLog:          slog.NewLogLogger(s.env.Log.Handler(), slog.LevelDebug),
	}
	srv.RegisterOnShutdown(s.web.Close)

	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	followed := make(chan error, 1)
	served := make(chan error, 1)
	// Writes under way are read back through the follower: it ends last.
	following, stopFollowing := context.WithCancel(context.WithoutCancel(ctx))
	defer stopFollowing()
	go func() {
		err := s.follower.Run(following)
		cancel()
		followed <- err
	}()
	go func() {
		err := srv.Serve(ln)
		cancel()
		served <- err
	}()
	s.serving.Store(true)
	s.env.Log.Info("console open", "address", "http://"+s.cfg.Listen.String())

	<-ctx.Done()
	s.serving.Store(false)
	stop, cancelStop := context.WithTimeout(context.WithoutCancel(ctx), stopTimeout)
	defer cancelStop()
	err = srv.Shutdown(stop)
	if e := <-served; !errors.Is(e, http.ErrServerClosed) {
		err = errors.Join(err, e)
	}
	stopFollowing()
	return errors.Join(err, <-followed)
}

// Ready is nil when the page shows all there is.
func (s *Service) Ready() error {
	if !s.serving.Load() {
		return errors.New("not serving yet")
	}
	return s.follower.Ready()
}

// Live is nil: the console recovers by itself from whatever Kafka does.
func (s *Service) Live() error { return nil }
