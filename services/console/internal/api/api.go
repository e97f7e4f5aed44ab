// Package api is the console's HTTP interface for programs: settings are put
// and got, as YAML or JSON (contract: Settings). It owns the form of answers
// and errors; what a write means and where it goes is the store's.
//
//	PUT /v1/settings[?prune=true]                      200 what changed; 400, 409, 413, 503
//	GET /v1/settings[?account=ID…][&versions=false]    200 the settings; 404, 503
//
// Invariant: 200 to a PUT means that the write is committed and that a GET of
// this console shows it; any other answer but a 503 means that nothing was
// written.
package api

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"strconv"
	"strings"

	"github.com/tocsin/tocsin/services/internal/settings"
)

// Settings is where they are kept.
type Settings interface {
	// Apply stores a write; the error is settings.Problems, settings.Conflict,
	// or anything else where they cannot be reached.
	Apply(ctx context.Context, w *settings.Write, o settings.Options) (*settings.Change, error)
	Export(accounts ...string) (*settings.Document, error)
}

// retryAfter is what a caller is told to wait when Kafka is away, in seconds.
const retryAfter = 2

// Answer is the body of a PUT that was done.
type Answer struct {
	// Changes are the objects that differ now, in the order of the text.
	Changes []settings.Line `json:"changes"`
	// Warnings are what is stored though it looks like a slip.
	Warnings []settings.Problem `json:"warnings"`
}

// Failure is the body of every answer that is not 2xx.
type Failure struct {
	Error    string             `json:"error"`
	Problems []settings.Problem `json:"problems,omitempty"`
}

// Handler serves the API.
func Handler(s Settings, log *slog.Logger) http.Handler {
	a := &api{settings: s, log: log}
	mux := http.NewServeMux()
	mux.HandleFunc("PUT /v1/settings", a.put)
	mux.HandleFunc("GET /v1/settings", a.get)
	return mux
}

type api struct {
	settings Settings
	log      *slog.Logger
}

func (a *api) put(w http.ResponseWriter, r *http.Request) {
	prune, err := flag(r, "prune", false)
	if err != nil {
		a.fail(w, r, http.StatusBadRequest, err.Error(), nil)
		return
	}
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, settings.MaxBytes))
	var tooLarge *http.MaxBytesError
	switch {
	case errors.As(err, &tooLarge):
		a.fail(w, r, http.StatusRequestEntityTooLarge, fmt.Sprintf("the settings have more than %d bytes; send the accounts in several writes", tooLarge.Limit), nil)
		return
	case err != nil:
		a.fail(w, r, http.StatusBadRequest, "the body could not be read: "+err.Error(), nil)
		return
	}
	write, err := settings.Parse(body)
	if err != nil {
		a.refuse(w, r, err)
		return
	}
	c, err := a.settings.Apply(r.Context(), write, settings.Options{Prune: prune})
	if err != nil {
		a.refuse(w, r, err)
		return
	}
	if wantsText(r) {
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		for _, l := range c.Lines {
			fmt.Fprintln(w, l)
		}
		for _, p := range c.Warnings {
			fmt.Fprintln(w, "warning:", p)
		}
		return
	}
	a.write(w, http.StatusOK, Answer{Changes: orEmpty(c.Lines), Warnings: orEmpty(c.Warnings)})
}

func (a *api) get(w http.ResponseWriter, r *http.Request) {
	versions, err := flag(r, "versions", true)
	if err != nil {
		a.fail(w, r, http.StatusBadRequest, err.Error(), nil)
		return
	}
	accounts := r.URL.Query()["account"]
	doc, err := a.settings.Export(accounts...)
	if err != nil {
		a.refuse(w, r, err)
		return
	}
	if missing := doc.Missing(); len(missing) > 0 {
		a.fail(w, r, http.StatusNotFound, fmt.Sprintf("there is no account %s", strings.Join(missing, ", ")), nil)
		return
	}
	if !versions {
		doc = doc.WithoutVersions()
	}
	if strings.Contains(r.Header.Get("Accept"), "application/json") {
		w.Header().Set("Content-Type", "application/json")
		_, err = w.Write(doc.JSON())
	} else {
		w.Header().Set("Content-Type", "application/yaml; charset=utf-8")
		_, err = w.Write(doc.YAML())
	}
	if err != nil {
		a.log.Debug("answer was not taken", "err", err)
	}
}

// refuse answers with what went wrong, by its type.
func (a *api) refuse(w http.ResponseWriter, r *http.Request, err error) {
	var problems settings.Problems
	var conflict settings.Conflict
	switch {
	case errors.As(err, &problems):
		a.fail(w, r, http.StatusBadRequest, err.Error(), problems)
	case errors.As(err, &conflict):
		a.fail(w, r, http.StatusConflict, err.Error(), conflict)
	default:
		a.log.Warn("settings request failed", "method", r.Method, "err", err)
		w.Header().Set("Retry-After", strconv.Itoa(retryAfter))
		a.fail(w, r, http.StatusServiceUnavailable, err.Error(), nil)
	}
}

func (a *api) fail(w http.ResponseWriter, r *http.Request, status int, reason string, problems []settings.Problem) {
	if wantsText(r) {
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		w.WriteHeader(status)
		fmt.Fprintln(w, reason)
		return
	}
	a.write(w, status, Failure{Error: reason, Problems: problems})
}

func (a *api) write(w http.ResponseWriter, status int, body any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	e := json.NewEncoder(w)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	if err := e.Encode(body); err != nil {
		a.log.Debug("answer was not taken", "err", err)
	}
}

func wantsText(r *http.Request) bool { return strings.HasPrefix(r.Header.Get("Accept"), "text/plain") }

func flag(r *http.Request, name string, otherwise bool) (bool, error) {
	v := r.URL.Query().Get(name)
	if v == "" {
		return otherwise, nil
	}
	b, err := strconv.ParseBool(v)
	if err != nil {
		return false, fmt.Errorf("%s=%q is neither true nor false", name, v)
	}
	return b, nil
}

func orEmpty[T any](s []T) []T {
	if s == nil {
		return []T{}
	}
	return s
}
