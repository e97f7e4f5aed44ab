package harness

import (
	"errors"
	"fmt"
	"io"
	"mime"
	"mime/multipart"
	"mime/quotedprintable"
	"net"
	"net/mail"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/emersion/go-smtp"
)

// Sink is a mail server that takes everything and keeps it. It can be stopped
// and started again at the same address.
type Sink struct {
	Host string
	Port int

	t     testing.TB
	mu    sync.Mutex
	mails []Mail

	server *smtp.Server // nil while stopped
	served chan error
}

// Mail is one message as a person would see it, and when it came.
type Mail struct {
	At      time.Time
	To      []string
	Subject string
	Text    string
	HTML    string
	Header  mail.Header
}

func (m Mail) String() string {
	return fmt.Sprintf("%s to %s: %s", m.At.Format("15:04:05.000"), strings.Join(m.To, ","), m.Subject)
}

// StartSink starts a mail server on loopback.
func StartSink(t testing.TB) *Sink {
	t.Helper()
	s := &Sink{Host: "127.0.0.1", Port: FreePort(t), t: t}
	s.Start()
	t.Cleanup(func() {
		s.Stop()
		if t.Failed() {
			for _, m := range s.Mails() {
				t.Logf("---- mail %v\n%s", m, m.Text)
			}
		}
	})
	return s
}

// Flags are the gateway's, for this relay.
func (s *Sink) Flags() []string {
	return []string{"--smtp.host", s.Host, "--smtp.port", fmt.Sprint(s.Port), "--smtp.tls", "none"}
}

// Start makes it answer. It must not be running.
func (s *Sink) Start() {
	s.t.Helper()
	ln := listen(s.t, fmt.Sprintf("%s:%d", s.Host, s.Port))
	server := smtp.NewServer(smtp.BackendFunc(func(*smtp.Conn) (smtp.Session, error) { return &session{sink: s}, nil }))
	server.Domain = "sink.test"
	server.EnableSMTPUTF8 = true
	served := make(chan error, 1)
	go func() { served <- server.Serve(ln) }()
	s.server, s.served = server, served
}

// Stop closes all connections and refuses new ones.
func (s *Sink) Stop() {
	if s.server == nil {
		return
	}
	s.server.Close()
	if err := <-s.served; err != nil && !errors.Is(err, smtp.ErrServerClosed) && !errors.Is(err, net.ErrClosed) {
		s.t.Errorf("mail server: %v", err)
	}
	s.server = nil
}

// Mails are those that came so far, in order.
func (s *Sink) Mails() []Mail {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]Mail(nil), s.mails...)
}

// Await waits until n mails have come in all and returns them; more are a failure.
func (s *Sink) Await(n int, within time.Duration) []Mail {
	s.t.Helper()
	Eventually(s.t, within, fmt.Sprintf("mail %d", n), func() error {
		if got := len(s.Mails()); got < n {
			return fmt.Errorf("%d came", got)
		}
		return nil
	})
	return s.Exactly(n)
}

// Exactly fails unless n mails have come so far, and returns them.
func (s *Sink) Exactly(n int) []Mail {
	s.t.Helper()
	mails := s.Mails()
	if len(mails) != n {
		var list strings.Builder
		for _, m := range mails {
			fmt.Fprintf(&list, "\n\t%v", m)
		}
		s.t.Fatalf("%d mails came, want %d:%s", len(mails), n, list.String())
	}
	return mails
}

type session struct {
	sink *Sink
	to   []string
}

func (s *session) Mail(string, *smtp.MailOptions) error { return nil }
func (s *session) Rcpt(to string, _ *smtp.RcptOptions) error {
	s.to = append(s.to, to)
	return nil
}
func (s *session) Reset()        { s.to = nil }
func (s *session) Logout() error { return nil }

func (s *session) Data(r io.Reader) error {
	m, err := parseMail(r)
	if err != nil {
		s.sink.t.Errorf("a mail that cannot be read: %v", err)
		return err
	}
	m.At, m.To = time.Now(), s.to
	s.sink.mu.Lock()
	defer s.sink.mu.Unlock()
	s.sink.mails = append(s.sink.mails, m)
	return nil
}

func parseMail(r io.Reader) (Mail, error) {
	msg, err := mail.ReadMessage(r)
	if err != nil {
		return Mail{}, err
	}
	m := Mail{Header: msg.Header}
	if m.Subject, err = new(mime.WordDecoder).DecodeHeader(msg.Header.Get("Subject")); err != nil {
		return Mail{}, fmt.Errorf("subject: %w", err)
	}
	err = m.part(msg.Header.Get("Content-Type"), msg.Header.Get("Content-Transfer-Encoding"), msg.Body)
	return m, err
}

// part takes in one part, and those within it.
func (m *Mail) part(contentType, encoding string, body io.Reader) error {
	kind, params, err := mime.ParseMediaType(contentType)
	if err != nil {
		return fmt.Errorf("content type %q: %w", contentType, err)
	}
	if strings.HasPrefix(kind, "multipart/") {
		parts := multipart.NewReader(body, params["boundary"])
		for {
			p, err := parts.NextRawPart()
			if errors.Is(err, io.EOF) {
				return nil
			}
			if err != nil {
				return err
			}
			if err := m.part(p.Header.Get("Content-Type"), p.Header.Get("Content-Transfer-Encoding"), p); err != nil {
				return err
			}
		}
	}
	if strings.EqualFold(encoding, "quoted-printable") {
		body = quotedprintable.NewReader(body)
	}
	text, err := io.ReadAll(body)
	if err != nil {
		return err
	}
	switch kind {
	case "text/plain":
		m.Text = string(text)
	case "text/html":
		m.HTML = string(text)
	default:
		return fmt.Errorf("a part of type %q is not expected in our mails", kind)
	}
	return nil
}
