// Package admin is the HTTP port of a service for those who run it:
//
//	/livez      200, or 503 with the reason when only a restart helps
//	/readyz     200, or 503 with what the service waits for
//	/metrics    Prometheus
//	/buildinfo  what was built, from what, as JSON
//	/debug/pprof
//
// It owns that port and nothing of the service: it asks.
//
// Invariant: from another machine nobody reads more than /livez and /readyz
// without the key.
package admin

import (
	"context"
	"crypto/subtle"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/pprof"
	"runtime/debug"
	"strings"
	"time"

	"github.com/tocsin/tocsin/services/internal/config"
)

// Config says where the port is. The default address is the service's own, set
// where the struct is embedded: `set:"admin_listen=127.0.0.1:7112"`.
type Config struct {
	Listen config.Address `name:"listen" default:"${admin_listen}" help:"Address of the admin port: /livez /readyz /metrics /buildinfo /debug/pprof."`
	Key    string         `name:"key" secret:"" help:"Key that /metrics, /buildinfo and /debug/pprof ask for (Authorization: Bearer KEY). Needed where the address is not this machine's own."`
}

// Validate refuses to open the port to others without a key.
func (c Config) Validate() error {
	if c.Listen.String() == "" {
		return errors.New("admin.listen: an address host:port is needed")
	}
	if !c.Listen.Loopback() && c.Key == "" {
		name := c.Listen.Flag()
		if name == "" {
			name = "admin.listen"
		}
		return fmt.Errorf("%s: %s can be reached from other machines: set %s too, or listen on 127.0.0.1",
			name, c.Listen, strings.TrimSuffix(name, "listen")+"key")
	}
	return nil
}

// Checks answers for the service behind the port. It is asked by several
// goroutines at once.
type Checks interface {
	// Ready is nil when the service does its work; else it says what it waits for.
	Ready() error
	// Live is nil unless the service can only be helped by a restart.
	Live() error
}

// Server is an open admin port.
type Server struct {
	ln   net.Listener
	http *http.Server
}

// Open listens; from then on the port is taken. Serve answers.
func Open(cfg Config, listen func(network, address string) (net.Listener, error), checks Checks, metrics http.Handler, log *slog.Logger) (*Server, error) {
	ln, err := cfg.Listen.Listen(listen)
	if err != nil {
		return nil, fmt.Errorf("open the admin port: %w", err)
	}
	return &Server{
		ln: ln,
		http: &http.Server{
			Handler:           Handler(checks, metrics, cfg.Key),
			ReadHeaderTimeout: 5 * time.Second,
			IdleTimeout:       time.Minute,
			MaxHeaderBytes:    16 << 10,
			ErrorLog:          slog.NewLogLogger(log.Handler(), slog.LevelDebug),
		},
	}, nil
}

// Addr is where the port is.
func (s *Server) Addr() net.Addr { return s.ln.Addr() }

// Serve answers until Close.
func (s *Server) Serve() error {
	if err := s.http.Serve(s.ln); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve the admin port: %w", err)
	}
	return nil
}

// Close lets the requests under way end, until ctx does.
func (s *Server) Close(ctx context.Context) error {
	if err := s.http.Shutdown(ctx); err != nil {
		return errors.Join(err, s.http.Close())
	}
	return nil
}

// Handler is the port's content. An empty key asks nobody for one.
func Handler(checks Checks, metrics http.Handler, key string) http.Handler {
	mux := http.NewServeMux()
	mux.Handle("GET /livez", check(checks.Live))
	mux.Handle("GET /readyz", check(checks.Ready))

	guarded := http.NewServeMux()
	guarded.Handle("GET /metrics", metrics)
	guarded.HandleFunc("GET /buildinfo", buildInfo)
	// Index serves the named profiles too; the others have handlers of their own.
	guarded.HandleFunc("/debug/pprof/", pprof.Index)
	guarded.HandleFunc("GET /debug/pprof/cmdline", pprof.Cmdline)
	guarded.HandleFunc("GET /debug/pprof/profile", pprof.Profile)
	guarded.HandleFunc("/debug/pprof/symbol", pprof.Symbol)
	guarded.HandleFunc("GET /debug/pprof/trace", pprof.Trace)
	mux.Handle("/", withKey(key, guarded))
	return mux
}

func check(ask func() error) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		w.Header().Set("Cache-Control", "no-store")
		answer := "ok"
		if err := ask(); err != nil {
			answer = err.Error()
			w.WriteHeader(http.StatusServiceUnavailable)
		}
		_, _ = io.WriteString(w, answer+"\n") // the asker is gone: nobody to tell
	})
}

// withKey lets those pass who have the key.
func withKey(key string, next http.Handler) http.Handler {
	if key == "" {
		return next
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		given, ok := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
		if !ok || subtle.ConstantTimeCompare([]byte(given), []byte(key)) != 1 {
			w.Header().Set("WWW-Authenticate", "Bearer")
			http.Error(w, "the admin key is needed: Authorization: Bearer KEY", http.StatusUnauthorized)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// build is the answer of /buildinfo.
type build struct {
	Path     string `json:"path"`
	Version  string `json:"version"`
	Go       string `json:"go"`
	Revision string `json:"revision,omitempty"`
	Time     string `json:"time,omitempty"`
	Modified bool   `json:"modified,omitempty"`
}

func buildInfo(w http.ResponseWriter, _ *http.Request) {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		http.Error(w, "built without build information", http.StatusNotFound)
		return
	}
	b := build{Path: info.Path, Version: info.Main.Version, Go: info.GoVersion}
	for _, s := range info.Settings {
		switch s.Key {
		case "vcs.revision":
			b.Revision = s.Value
		case "vcs.time":
			b.Time = s.Value
		case "vcs.modified":
			b.Modified = s.Value == "true"
		}
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(b) // the asker is gone: nobody to tell
}
