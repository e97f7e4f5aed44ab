// Package ingest is the archiver's door: HTTP requests with events, and the
// answers to them. It owns what a request may be (method, media type, size,
// key) and how the answer reads, not what the events mean, nor where they go.
//
// Invariant: an answer of 2xx is given only when the Intake has said that
// every accepted event is safe.
package ingest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/go-json-experiment/json"
	"go.opentelemetry.io/otel/trace"

	"github.com/tocsin/tocsin/services/internal/codec"
)

// Request is what came through the door.
type Request struct {
	// Feed is the name in the path, empty for POST /v1/events.
	Feed string
	// MediaType is the content type without parameters; empty: none was given.
	MediaType string
	Query     url.Values
	Body      []byte
	// Received is when it came, by our clock.
	Received time.Time
	// May says for which accounts the caller may write.
	May func(account string) bool
}

// Answer is what became of a request's items.
type Answer struct {
	Accepted  int         `json:"accepted"`
	Duplicate int         `json:"duplicate"`
	Rejected  []Rejection `json:"rejected"`
	// Error says it in one sentence when nothing was accepted.
	Error string `json:"error,omitzero"`
	// Forbidden of the rejected were so because of May.
	Forbidden int `json:"-"`
}

// Rejection says which item of a request is wrong, and how.
type Rejection struct {
	// Index counts the items, such as lines, from 0.
	Index int `json:"index"`
	// Field is a JSON name, empty where the item as a whole is unreadable.
	Field  string `json:"field"`
	Reason string `json:"reason"`
}

// Intake takes events.
type Intake interface {
	// Feeds are the names of the feeds.
	Feeds() []string
	// MediaTypes that a feed reads, one of them "" if no body will do; nil when
	// there is no such feed.
	MediaTypes(feed string) []string
	// Take reads a request and makes its events safe. It counts nothing as
	// accepted when there is an error: ErrAway, ErrBusy or ErrTooMany, wrapped,
	// or a *codec.FieldError about the request as a whole.
	Take(ctx context.Context, r Request) (Answer, error)
}

// Why an Intake takes nothing of a request.
var (
	ErrAway    = errors.New("no answer from Kafka")
	ErrBusy    = errors.New("too much is under way")
	ErrTooMany = errors.New("too many events")
)

// Scope says for which accounts the sender of a request may write. An error is
// for the caller to read.
type Scope func(r *http.Request) (may func(account string) bool, err error)

// Config bounds what one request, and all at once, may cost.
type Config struct {
	MaxBodyBytes int64
	MaxRequests  int
}

// Handler serves POST /v1/events and POST /v1/feeds/{feed}.
type Handler struct {
	cfg    Config
	scope  Scope
	intake Intake
	// places are the requests under way.
	places chan struct{}
	mux    http.Handler
}

// New makes a handler.
func New(cfg Config, scope Scope, intake Intake) *Handler {
	h := &Handler{cfg: cfg, scope: scope, intake: intake, places: make(chan struct{}, cfg.MaxRequests)}
	mux := http.NewServeMux()
	mux.HandleFunc("/v1/events", func(w http.ResponseWriter, r *http.Request) { h.serve(w, r, "") })
	mux.HandleFunc("/v1/feeds/{feed}", func(w http.ResponseWriter, r *http.Request) {
		feed := r.PathValue("feed")
		if !slices.Contains(intake.Feeds(), feed) {
			refuse(w, http.StatusNotFound, "there is no feed %q: %s are there", feed, strings.Join(intake.Feeds(), ", "))
			return
		}
		h.serve(w, r, feed)
	})
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		refuse(w, http.StatusNotFound, "nothing is here: POST /v1/events or /v1/feeds/{%s}", strings.Join(intake.Feeds(), "|"))
	})
	// A page in the operator's browser must not write events on loopback, where
	// no key is asked for: forms and plain text need no preflight.
	guard := http.NewCrossOriginProtection()
	guard.SetDenyHandler(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		refuse(w, http.StatusForbidden, "web pages of other origins may not send events")
	}))
	h.mux = guard.Handler(mux)
	return h
}

func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) { h.mux.ServeHTTP(w, r) }

func refuse(w http.ResponseWriter, status int, format string, args ...any) {
	write(w, status, Answer{Error: fmt.Sprintf(format, args...)})
}

func write(w http.ResponseWriter, status int, a Answer) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	// An error here is a caller who left.
	_ = json.MarshalWrite(w, a)
	_, _ = io.WriteString(w, "\n")
}

// How long a caller is asked to wait, in seconds.
const (
	waitBusy = "1"
	waitAway = "5"
)

func (h *Handler) serve(w http.ResponseWriter, r *http.Request, feed string) {
	received := time.Now()
	if r.Method != http.MethodPost {
		w.Header().Set("Allow", http.MethodPost)
		refuse(w, http.StatusMethodNotAllowed, "events are sent with POST, not %s", r.Method)
		return
	}
	may, err := h.scope(r)
	if err != nil {
		w.Header().Set("WWW-Authenticate", `Bearer realm="tocsin"`)
		refuse(w, http.StatusUnauthorized, "%v", err)
		return
	}
	select {
	case h.places <- struct{}{}:
		defer func() { <-h.places }()
	default:
		w.Header().Set("Retry-After", waitBusy)
		refuse(w, http.StatusTooManyRequests, "%d requests are under way, no more fit: try again in %s s", h.cfg.MaxRequests, waitBusy)
		return
	}
	request := Request{Feed: feed, Query: r.URL.Query(), Received: received, May: may}
	if status, err := h.read(w, r, &request); err != nil {
		refuse(w, status, "%v", err)
		return
	}
	ctx := trace.ContextWithRemoteSpanContext(r.Context(),
		codec.ParseTrace(r.Header.Get("traceparent"), r.Header.Get("tracestate")))
	answer, err := h.intake.Take(ctx, request)
	if err != nil {
		fail(w, err)
		return
	}
	write(w, status(&answer), answer)
}

// fail answers to a request of which nothing was taken.
func fail(w http.ResponseWriter, err error) {
	var field *codec.FieldError
	switch {
	case errors.As(err, &field):
		write(w, http.StatusBadRequest, Answer{Error: err.Error(), Rejected: []Rejection{{Field: field.Field, Reason: field.Reason}}})
	case errors.Is(err, ErrTooMany):
		refuse(w, http.StatusRequestEntityTooLarge, "%v: send smaller batches", err)
	case errors.Is(err, ErrBusy):
		w.Header().Set("Retry-After", waitBusy)
		refuse(w, http.StatusTooManyRequests, "%v: nothing counts as accepted, send it again in %s s", err, waitBusy)
	default:
		w.Header().Set("Retry-After", waitAway)
		refuse(w, http.StatusServiceUnavailable, "%v: nothing counts as accepted, send it again in %s s", err, waitAway)
	}
}

// status is the code for an answer, and completes it: 202, or when nothing of
// it was usable 403 or 400. A feed's message may hold no event and be right,
// such as a poll of previews.
func status(a *Answer) int {
	switch {
	case a.Accepted+a.Duplicate > 0 || len(a.Rejected) == 0:
		return http.StatusAccepted
	case a.Forbidden == len(a.Rejected):
		a.Error = "this API key may not write for these accounts"
		return http.StatusForbidden
	}
	first := codec.FieldError{Field: a.Rejected[0].Field, Reason: a.Rejected[0].Reason}
	a.Error = first.Error()
	if n := len(a.Rejected); n > 1 {
		a.Error = fmt.Sprintf("none of the %d items is usable; the first: %v", n, &first)
	}
	return http.StatusBadRequest
}

// read checks what kind of body it is and reads it. With an error comes the
// status to answer with.
func (h *Handler) read(w http.ResponseWriter, r *http.Request, into *Request) (status int, err error) {
	header := r.Header.Get("Content-Type")
	if header != "" {
		if into.MediaType, _, err = mime.ParseMediaType(header); err != nil {
			return http.StatusUnsupportedMediaType, fmt.Errorf("the content type %q is not readable", header)
		}
	}
	if types := h.intake.MediaTypes(into.Feed); !slices.Contains(types, into.MediaType) {
		if header == "" && r.ContentLength == 0 {
			return http.StatusBadRequest, errors.New("the body is empty")
		}
		types = slices.DeleteFunc(slices.Clone(types), func(t string) bool { return t == "" })
		return http.StatusUnsupportedMediaType, fmt.Errorf("the content type %q is not read here: %s", header, strings.Join(types, ", "))
	}
	if encoding := r.Header.Get("Content-Encoding"); encoding != "" && encoding != "identity" {
		return http.StatusUnsupportedMediaType, fmt.Errorf("the content encoding %q is not read here: send it plain", encoding)
	}
	if r.ContentLength > h.cfg.MaxBodyBytes && r.Header.Get("Expect") != "" {
		// The caller waits for our word before it sends.
		return http.StatusRequestEntityTooLarge, h.tooLarge()
	}
	into.Body, err = io.ReadAll(io.LimitReader(r.Body, h.cfg.MaxBodyBytes+1))
	if err != nil {
		return http.StatusBadRequest, fmt.Errorf("the body ended early: %w", err)
	}
	if int64(len(into.Body)) > h.cfg.MaxBodyBytes {
		drain(w, r)
		return http.StatusRequestEntityTooLarge, h.tooLarge()
	}
	return 0, nil
}

func (h *Handler) tooLarge() error {
	return fmt.Errorf("the body is larger than the limit of %d bytes: send smaller batches", h.cfg.MaxBodyBytes)
}

// drain reads on for a while, so that the caller reads our answer and not a
// connection reset in the middle of its sending.
func drain(w http.ResponseWriter, r *http.Request) {
	const most, patience = 64 << 20, 5 * time.Second
	// Both errors mean that the connection is of no use any more.
	_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(patience))
	_, _ = io.CopyN(io.Discard, r.Body, most)
	w.Header().Set("Connection", "close")
}
