package admin_test

import (
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/tocsin/tocsin/services/internal/admin"
	"github.com/tocsin/tocsin/services/internal/config"
)

type fakeChecks struct{ ready, live error }

func (f fakeChecks) Ready() error { return f.ready }
func (f fakeChecks) Live() error  { return f.live }

var fakeMetrics = http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "metrics here") })

// Proves what each path answers, with and without a key.
func TestPaths(t *testing.T) {
	waiting := fakeChecks{ready: errors.New("restoring partition 3"), live: errors.New("member 0 is stuck")}
	for _, tt := range []struct {
		name, path, key, given string
		checks                 fakeChecks
		code                   int
		says                   string
	}{
		{name: "live", path: "/livez", code: 200, says: "ok"},
		{name: "ready", path: "/readyz", code: 200, says: "ok"},
		{name: "not live", path: "/livez", checks: waiting, code: 503, says: "member 0 is stuck"},
		{name: "not ready", path: "/readyz", checks: waiting, code: 503, says: "restoring partition 3"},
		{name: "metrics", path: "/metrics", code: 200, says: "metrics here"},
		{name: "build", path: "/buildinfo", code: 200, says: `"go":"go1.`},
		{name: "profiles", path: "/debug/pprof/", code: 200, says: "goroutine"},
		{name: "a profile", path: "/debug/pprof/heap?debug=1", code: 200, says: "heap profile"},
		{name: "elsewhere", path: "/nothing", code: 404},
		{name: "ready needs no key", path: "/readyz", key: "k", code: 200, says: "ok"},
		{name: "metrics without key", path: "/metrics", key: "k", code: 401, says: "key"},
		{name: "metrics with wrong key", path: "/metrics", key: "k", given: "Bearer x", code: 401},
		{name: "metrics with key", path: "/metrics", key: "k", given: "Bearer k", code: 200, says: "metrics here"},
		{name: "profile without key", path: "/debug/pprof/heap", key: "k", code: 401},
	} {
		t.Run(tt.name, func(t *testing.T) {
			req := httptest.NewRequest(http.MethodGet, tt.path, nil)
			if tt.given != "" {
				req.Header.Set("Authorization", tt.given)
			}
			rec := httptest.NewRecorder()
			admin.Handler(tt.checks, fakeMetrics, tt.key).ServeHTTP(rec, req)
			if rec.Code != tt.code || !strings.Contains(rec.Body.String(), tt.says) {
				t.Errorf("%d %q, want %d with %q", rec.Code, rec.Body, tt.code, tt.says)
			}
		})
	}
}

// Proves that an open port answers, that a second service on it is told which
// flag to change, and that Close frees it.
func TestPort(t *testing.T) {
	var s struct {
		Admin admin.Config `embed:"" prefix:"admin.monitor." set:"admin_listen=127.0.0.1:0"`
	}
	if _, err := (config.Program{Name: "test", Settings: &s}).Parse(nil); err != nil {
		t.Fatal(err)
	}
	log := slog.New(slog.DiscardHandler)
	srv, err := admin.Open(s.Admin, net.Listen, fakeChecks{}, fakeMetrics, log)
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- srv.Serve() }()
	resp, err := http.Get("http://" + srv.Addr().String() + "/livez")
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		t.Errorf("/livez answers %s", resp.Status)
	}

	if _, err := (config.Program{Name: "test", Settings: &s}).Parse([]string{"--admin.monitor.listen", srv.Addr().String()}); err != nil {
		t.Fatal(err)
	}
	_, err = admin.Open(s.Admin, net.Listen, fakeChecks{}, fakeMetrics, log)
	if err == nil || !strings.Contains(err.Error(), srv.Addr().String()) || !strings.Contains(err.Error(), "--admin.monitor.listen") {
		t.Errorf("second on the port: %v", err)
	}

	if err := srv.Close(t.Context()); err != nil {
		t.Error(err)
	}
	if err := <-done; err != nil {
		t.Error(err)
	}
	ln, err := net.Listen("tcp", srv.Addr().String())
	if err != nil {
		t.Fatalf("not free after Close: %v", err)
	}
	ln.Close()
}

// Proves that the port is opened to other machines only with a key, and that
// the refusal names both settings as they are called here.
func TestNeedsKey(t *testing.T) {
	var s struct {
		Admin admin.Config `embed:"" prefix:"admin.gateway." set:"admin_listen=127.0.0.1:7113"`
	}
	for _, tt := range []struct {
		args []string
		ok   bool
	}{
		{args: nil, ok: true},
		{args: []string{"--admin.gateway.listen=[::1]:7113"}, ok: true},
		{args: []string{"--admin.gateway.listen=:7113"}},
		{args: []string{"--admin.gateway.listen=0.0.0.0:7113", "--admin.gateway.key=k"}, ok: true},
		{args: []string{"--admin.gateway.listen="}},
	} {
		_, err := config.Program{Name: "test", Settings: &s}.Parse(tt.args)
		if (err == nil) != tt.ok {
			t.Errorf("%v: error %v", tt.args, err)
		}
		if len(tt.args) == 1 && strings.Contains(tt.args[0], "=:7113") &&
			(!strings.Contains(err.Error(), "admin.gateway.listen") || !strings.Contains(err.Error(), "admin.gateway.key")) {
			t.Errorf("the refusal does not name the settings: %v", err)
		}
	}
}
