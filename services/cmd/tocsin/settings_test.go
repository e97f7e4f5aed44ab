package main

import (
	"bytes"
	"errors"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/tocsin/tocsin/services/internal/config"
	"github.com/tocsin/tocsin/services/internal/settings"
)

// The exit code and the words of `tocsin settings` follow the console's
// answer: 2 for what is wrong with the file or the question, 1 for the rest.
func TestSettingsExitCodes(t *testing.T) {
	for name, c := range map[string]struct {
		status int
		body   string
		code   int
		words  string
	}{
		"done":        {200, `{"changes":[{"action":"created","kind":"site","account":"a","id":"s"}],"warnings":[]}`, 0, ""},
		"refused":     {400, `{"error":"line 3, column 5: accounts[0].naem: unknown field"}`, 2, "line 3, column 5: accounts[0].naem"},
		"stale":       {409, `{"error":"site s has version 4 by now"}`, 1, "version 4 by now"},
		"too large":   {413, `{"error":"more than 8388608 bytes"}`, 2, "8388608"},
		"Kafka away":  {503, `{"error":"Kafka does not answer, nothing was written"}`, 1, "nothing was written"},
		"not console": {502, `<html>bad gateway</html>`, 1, "answers 502 Bad Gateway: <html>"},
		"not JSON":    {200, `hello`, 1, "not readable"},
	} {
		t.Run(name, func(t *testing.T) {
			var got []byte
			srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				var b bytes.Buffer
				if _, err := b.ReadFrom(r.Body); err != nil {
					t.Error(err)
				}
				got = b.Bytes()
				if r.Method != http.MethodPut || r.URL.Query().Get("prune") != "true" {
					t.Errorf("%s %s", r.Method, r.URL)
				}
				w.WriteHeader(c.status)
				if _, err := w.Write([]byte(c.body)); err != nil {
					t.Error(err)
				}
			}))
			defer srv.Close()
			file := filepath.Join(t.TempDir(), "f.yaml")
			if err := os.WriteFile(file, []byte("accounts: []\n"), 0o600); err != nil {
				t.Fatal(err)
			}
			err := (&settingsApplyCmd{consoleTarget: consoleTarget{To: srv.URL}, File: file, Prune: true}).Run(t.Context())
			if config.ExitCode(err) != c.code {
				t.Errorf("exit code %d, want %d: %v", config.ExitCode(err), c.code, err)
			}
			if c.words != "" && (err == nil || !strings.Contains(err.Error(), c.words)) {
				t.Errorf("err = %v, want %s", err, c.words)
			}
			if string(got) != "accounts: []\n" {
				t.Errorf("sent %q", got)
			}
		})
	}
	if err := (&settingsApplyCmd{File: filepath.Join(t.TempDir(), "none")}).Run(t.Context()); config.ExitCode(err) != 2 || !errors.Is(err, os.ErrNotExist) {
		t.Errorf("no file: %v", err)
	}
}

// The demo's settings are right, and need no warning.
func TestDemoSettings(t *testing.T) {
	text, err := os.ReadFile("demo.yaml")
	if err != nil {
		t.Fatal(err)
	}
	w, err := settings.Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	c, err := settings.NewBook().Apply(w, settings.Options{})
	if err != nil {
		t.Fatal(err)
	}
	if len(c.Warnings) > 0 || len(c.Devices) != 7 {
		t.Errorf("warnings %v, %d devices", c.Warnings, len(c.Devices))
	}
	var out, warn bytes.Buffer
	if err := report(&out, &warn, c.Lines, c.Warnings); err != nil || !strings.HasPrefix(out.String(), "created account demo\n") || warn.Len() > 0 {
		t.Errorf("%v %s %s", err, out.String(), warn.String())
	}
}
