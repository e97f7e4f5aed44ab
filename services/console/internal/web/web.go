// Package web is the console's page for people: devices with their state and
// hold, the last notifications and what became of them, and the inbox of
// `tocsin up`. It is made on the server, works without a script, and stays
// current by server-sent events.
//
//	GET /                 the page
//	GET /live             its sections again whenever they change (SSE)
//	GET /mail/ID          one mail: ?view=html, text, headers or source
//	GET /mail/ID/html     the mail's own HTML, for a sandboxed frame only
//	GET /why/MAIL         why a mail was sent; mails link there
//	GET /static/…         style, script, icon
//
// It changes nothing and decides nothing. Whatever comes from a device, a
// setting or a mail is text to it: html/template escapes it, and a mail's HTML
// is served under a policy that allows no script, no request and no origin.
package web

import (
	"bytes"
	"embed"
	"encoding/json"
	"errors"
	"fmt"
	"html/template"
	"io/fs"
	"log/slog"
	"net/http"
	"sync"
	"time"

	"github.com/tocsin/tocsin/services/console/internal/readmodel"
	"github.com/tocsin/tocsin/services/internal/inbox"
)

//go:embed templates/*.html static
var files embed.FS

// Bounds of the page.
const (
	maxDevices = 200
	maxNotices = 60
	maxMails   = 60
	// maxLive is how many pages may be open at once.
	maxLive = 256
	// settle is how long a change waits for others, so that a burst is one
	// update; no page is sent more often.
	settle    = 150 * time.Millisecond
	heartbeat = 15 * time.Second
)

// Inbox is what mails there are; *inbox.Inbox is one.
type Inbox interface {
	// List is the last mails, newest first.
	List(limit int) []inbox.Summary
	// Get is one mail; inbox.ErrNotFound when there is none of that id.
	Get(id string) (inbox.Message, error)
	// Subscribe is a channel that gets a value when a mail has come.
	Subscribe() (news <-chan struct{}, stop func())
}

// Options are what New needs.
type Options struct {
	Log   *slog.Logger
	Model *readmodel.Model
	Names Names
	// Inbox is nil where mails go to a relay and not to people's eyes here.
	Inbox Inbox
	// Ready is nil when the model is complete.
	Ready func() error
	// Ingest is the archiver's address, for the hint on an empty page.
	Ingest string
}

// Web serves the page.
type Web struct {
	Options
	mux  *http.ServeMux
	page *template.Template
	done chan struct{}
	stop func()

	mu     sync.Mutex
	live   int
	cached sections
}

// sections are the live parts of the page, rendered, of one version of what
// they show. All open pages share them.
type sections struct {
	model  uint64
	mail   string // the newest mail's id
	ready  bool
	pieces []section
}

type section struct {
	ID   string `json:"id"`
	HTML string `json:"html"`
}

// sectionNames are the templates that are live, by the ids of their elements.
var sectionNames = []string{"summary", "devices", "notices", "inbox"}

// New is the page's server.
func New(o Options) (*Web, error) {
	page, err := template.New("").Funcs(template.FuncMap{"when": when}).ParseFS(files, "templates/*.html")
	if err != nil {
		return nil, fmt.Errorf("read the page's templates: %w", err)
	}
	static, err := fs.Sub(files, "static")
	if err != nil {
		return nil, fmt.Errorf("read the page's files: %w", err)
	}
	w := &Web{Options: o, mux: http.NewServeMux(), page: page, done: make(chan struct{})}
	w.stop = sync.OnceFunc(func() { close(w.done) })
	w.mux.HandleFunc("GET /{$}", w.overview)
	w.mux.HandleFunc("GET /live", w.follow)
	w.mux.HandleFunc("GET /mail/{id}", w.mail)
	w.mux.HandleFunc("GET /mail/{id}/html", w.mailHTML)
	w.mux.HandleFunc("GET /why/{mail}", w.why)
	w.mux.Handle("GET /static/", http.StripPrefix("/static/", http.FileServerFS(static)))
	return w, nil
}

// Close ends the streams of all open pages, so that a server can stop.
func (w *Web) Close() { w.stop() }

// policy lets the page load only its own files; nothing inline, no framing.
const policy = "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self'; connect-src 'self'; frame-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"

// mailPolicy is for a mail's own HTML: styles written in it, pictures carried
// in it, and links that open elsewhere.
const mailPolicy = "default-src 'none'; style-src 'unsafe-inline'; img-src data:; sandbox allow-popups allow-popups-to-escape-sandbox; base-uri 'none'; form-action 'none'; frame-ancestors 'self'"

func (w *Web) ServeHTTP(rw http.ResponseWriter, r *http.Request) {
	h := rw.Header()
	h.Set("Content-Security-Policy", policy)
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Referrer-Policy", "no-referrer")
	h.Set("Cross-Origin-Opener-Policy", "same-origin")
	h.Set("Cross-Origin-Resource-Policy", "same-origin")
	h.Set("Cache-Control", "no-cache")
	w.mux.ServeHTTP(rw, r)
}

func (w *Web) render(rw http.ResponseWriter, status int, name string, data any) {
	var b bytes.Buffer
	if err := w.page.ExecuteTemplate(&b, name, data); err != nil {
		w.Log.Error("page could not be made", "err", err)
		http.Error(rw, "the page could not be made; the console's log says why", http.StatusInternalServerError)
		return
	}
	rw.Header().Set("Content-Type", "text/html; charset=utf-8")
	rw.WriteHeader(status)
	if _, err := b.WriteTo(rw); err != nil {
		w.Log.Debug("page was not taken", "err", err)
	}
}

func (w *Web) overview(rw http.ResponseWriter, _ *http.Request) {
	w.render(rw, http.StatusOK, "overview.html", w.view())
}

// follow streams the sections: all of them first, then those that changed.
func (w *Web) follow(rw http.ResponseWriter, r *http.Request) {
	if !w.enter() {
		rw.Header().Set("Retry-After", "30")
		http.Error(rw, fmt.Sprintf("more than %d pages are open; close some", maxLive), http.StatusServiceUnavailable)
		return
	}
	defer w.leave()
	changed, unwatch := w.Model.Watch()
	defer unwatch()
	var news <-chan struct{}
	if w.Inbox != nil {
		var unsubscribe func()
		news, unsubscribe = w.Inbox.Subscribe()
		defer unsubscribe()
	}
	rw.Header().Set("Content-Type", "text/event-stream")
	rw.Header().Set("Cache-Control", "no-store")
	out := http.NewResponseController(rw)
	// The server's limit for reading a request would end the stream.
	if err := out.SetReadDeadline(time.Time{}); err != nil {
		w.Log.Debug("live page has no read deadline to take away", "err", err)
	}
	sent := map[string]string{}
	beat := time.NewTicker(heartbeat)
	defer beat.Stop()
	for {
		if err := w.send(rw, sent); err != nil {
			w.Log.Debug("live page is gone", "err", err)
			return
		}
		// A page that does not read is let go, it comes back by itself.
		if err := errors.Join(out.Flush(), out.SetWriteDeadline(time.Now().Add(2*heartbeat))); err != nil {
			return
		}
		select {
		case <-r.Context().Done():
			return
		case <-w.done:
			return
		case <-changed:
		case <-news:
		case <-beat.C:
			if _, err := fmt.Fprintf(rw, "event: beat\ndata: %d\n\n", time.Now().UnixMilli()); err != nil {
				return
			}
			continue
		}
		select {
		case <-time.After(settle):
		case <-r.Context().Done():
			return
		case <-w.done:
			return
		}
	}
}

// send writes the sections that differ from what was sent before.
func (w *Web) send(rw http.ResponseWriter, sent map[string]string) error {
	all, err := w.sections()
	if err != nil {
		return err
	}
	for _, s := range all {
		if sent[s.ID] == s.HTML {
			continue
		}
		sent[s.ID] = s.HTML
		data, err := json.Marshal(s)
		if err != nil {
			return err
		}
		if _, err := fmt.Fprintf(rw, "event: section\ndata: %s\n\n", data); err != nil {
			return err
		}
	}
	_, err = fmt.Fprintf(rw, "event: beat\ndata: %d\n\n", time.Now().UnixMilli())
	return err
}

func (w *Web) enter() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.live >= maxLive {
		return false
	}
	w.live++
	return true
}

func (w *Web) leave() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.live--
}

// sections renders the live parts, once for all pages and each change.
func (w *Web) sections() ([]section, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	c := w.cached
	if c.pieces != nil && c.model == w.Model.Version() && c.mail == w.newestMail() && c.ready == (w.Ready() == nil) {
		return c.pieces, nil
	}
	// What is shown is read after these: it may be newer than they say, never
	// older.
	c = sections{model: w.Model.Version(), mail: w.newestMail(), ready: w.Ready() == nil}
	v := w.view()
	for _, name := range sectionNames {
		if name == "inbox" && w.Inbox == nil {
			continue
		}
		var b bytes.Buffer
		if err := w.page.ExecuteTemplate(&b, name, v); err != nil {
			return nil, fmt.Errorf("make section %s: %w", name, err)
		}
		c.pieces = append(c.pieces, section{ID: name, HTML: b.String()})
	}
	w.cached = c
	return c.pieces, nil
}

func (w *Web) newestMail() string {
	if w.Inbox == nil {
		return ""
	}
	if l := w.Inbox.List(1); len(l) > 0 {
		return l[0].ID
	}
	return ""
}

func (w *Web) mail(rw http.ResponseWriter, r *http.Request) {
	m, ok := w.find(rw, r)
	if !ok {
		return
	}
	w.render(rw, http.StatusOK, "mail.html", w.mailView(m, r.URL.Query().Get("view")))
}

func (w *Web) why(rw http.ResponseWriter, r *http.Request) {
	id := r.PathValue("mail")
	about := w.about(func(o readmodel.Outcome) bool { return o.MailID == id })
	if len(about) == 0 {
		w.render(rw, http.StatusNotFound, "missing.html", "Nothing is known here of that mail. Only the last notifications are kept.")
		return
	}
	w.render(rw, http.StatusOK, "why.html", whyView{Now: time.Now().UnixMilli(), About: about})
}

func (w *Web) mailHTML(rw http.ResponseWriter, r *http.Request) {
	m, ok := w.find(rw, r)
	if !ok {
		return
	}
	rw.Header().Set("Content-Security-Policy", mailPolicy)
	rw.Header().Set("Content-Type", "text/html; charset=utf-8")
	if _, err := rw.Write([]byte(openLinksElsewhere(m.HTML))); err != nil {
		w.Log.Debug("mail was not taken", "err", err)
	}
}

// find is the mail that a request names; without one it answers itself.
func (w *Web) find(rw http.ResponseWriter, r *http.Request) (inbox.Message, bool) {
	if w.Inbox == nil {
		w.render(rw, http.StatusNotFound, "missing.html", "This console shows no inbox: mails go to a relay.")
		return inbox.Message{}, false
	}
	m, err := w.Inbox.Get(r.PathValue("id"))
	switch {
	case errors.Is(err, inbox.ErrNotFound):
		w.render(rw, http.StatusNotFound, "missing.html", "There is no such mail. The oldest go when the inbox is full.")
		return m, false
	case err != nil:
		w.Log.Error("mail could not be read", "err", err)
		w.render(rw, http.StatusInternalServerError, "missing.html", "The mail could not be read; the console's log says why.")
		return m, false
	}
	return m, true
}
