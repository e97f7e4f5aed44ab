// Package smtptest is an SMTP server that does as a test says: it answers each
// command by a script, stalls, drops connections before or after the final dot,
// offers STARTTLS or not, and keeps what it was sent.
//
// It is no mail sink for people (package inbox is) and checks no syntax: it is
// the other end of a test of a client. It works on any listener, also on
// kfake.VirtualNetwork in a synctest bubble: what it writes is buffered, as TCP
// would, so that a reply nobody reads yet does not hold it up.
package smtptest

import (
	"bufio"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net"
	"slices"
	"strings"
	"sync"
	"time"
)

// Verbs of events that are no command of the client.
const (
	// Connect is the greeting.
	Connect = "CONNECT"
	// Dot is the end of a message's content.
	Dot = "DOT"
)

// Event is what the script is asked about.
type Event struct {
	// Conn counts connections, Mail messages begun on all of them (MAIL, RCPT,
	// DATA, Dot), both from 1.
	Conn, Mail int
	// Verb is the command in capitals, Connect or Dot; Arg is the rest of the line.
	Verb, Arg string
	// Rcpt is the recipient's address at RCPT, DATA and Dot.
	Rcpt string
}

// Reply is what the server does about an event.
type Reply struct {
	// Text is the reply, such as "550 5.1.1 no such user"; lines of several are
	// parted by "\n" and have their codes. Empty: nothing is said.
	Text string
	// After is waited first.
	After time.Duration
	// Drop closes the connection then; Deaf leaves it open and reads nothing more.
	Drop, Deaf bool
	// Lose throws a message away at Dot that the server would have kept, as
	// it keeps all that it does not refuse with 4xx or 5xx.
	Lose bool
}

// Script says how a server behaves; the zero value takes every mail at once.
type Script struct {
	// Extensions are offered after EHLO, such as "SMTPUTF8" or "AUTH PLAIN".
	// STARTTLS is offered by itself where there is a certificate and Implicit is false.
	Extensions  []string
	Certificate *Certificate
	// Implicit speaks TLS from the first byte.
	Implicit bool
	// Reply is asked about every event; nil means the ordinary reply.
	Reply func(Event) *Reply
	// Idle, if above 0, is how long the server waits for a command before it
	// does IdleReply, which usually drops the connection.
	Idle      time.Duration
	IdleReply Reply
}

// Message is a mail as the server kept it.
type Message struct {
	Conn     int
	From, To string
	// Params is what followed the address in MAIL.
	Params string
	// Data is the content, dots unstuffed, lines ended by CR LF.
	Data string
	Time time.Time
	// TLS: it came over an encrypted connection.
	TLS bool
}

// Server is a running server.
type Server struct {
	listener net.Listener
	script   Script
	running  sync.WaitGroup
	closing  chan struct{}

	mu       sync.Mutex
	conns    map[net.Conn]struct{}
	opened   int
	mails    int
	commands []string
	logins   []string
	messages []Message
}

// Start serves on l until Close.
func Start(l net.Listener, script Script) *Server {
	s := &Server{listener: l, script: script, closing: make(chan struct{}), conns: make(map[net.Conn]struct{})}
	s.running.Go(s.accept)
	return s
}

// Close closes the listener and all connections and waits for their ends.
func (s *Server) Close() {
	close(s.closing)
	s.listener.Close() // nothing can be done about it
	s.mu.Lock()
	for c := range s.conns {
		c.Close() // as above
	}
	s.mu.Unlock()
	s.running.Wait()
}

// Opened is how many connections there were, Open how many there are.
func (s *Server) Opened() int { s.mu.Lock(); defer s.mu.Unlock(); return s.opened }

// Open is how many connections there are.
func (s *Server) Open() int { s.mu.Lock(); defer s.mu.Unlock(); return len(s.conns) }

// Messages are those kept so far.
func (s *Server) Messages() []Message {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.messages)
}

// Commands are the lines that came so far, as "2: MAIL FROM:<…>" with the
// connection's number; passwords are left out.
func (s *Server) Commands() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.commands)
}

// Logins are the "user:password" pairs that came by AUTH PLAIN.
func (s *Server) Logins() []string { s.mu.Lock(); defer s.mu.Unlock(); return slices.Clone(s.logins) }

func (s *Server) accept() {
	for {
		c, err := s.listener.Accept()
		if err != nil {
			return
		}
		raw := buffer(c)
		s.mu.Lock()
		s.opened++
		id := s.opened
		s.conns[raw] = struct{}{}
		s.mu.Unlock()
		s.running.Go(func() {
			defer func() {
				raw.Close() // the test's end of it is over
				s.mu.Lock()
				delete(s.conns, raw)
				s.mu.Unlock()
			}()
			(&conn{server: s, id: id}).run(raw)
		})
	}
}

// errDropped ends a connection as the script says.
var errDropped = errors.New("dropped")

// conn is one connection; only its goroutine touches it.
type conn struct {
	server *Server
	id     int
	net    net.Conn
	r      *bufio.Reader
	tls    bool

	mail             int
	from, params, to string
}

func (c *conn) use(n net.Conn) { c.net, c.r = n, bufio.NewReader(n) }

func (c *conn) run(raw net.Conn) {
	c.use(raw)
	if c.server.script.Implicit {
		if c.encrypt() != nil {
			return
		}
	}
	if c.answer(Event{Verb: Connect}, "220 relay.test ESMTP") != nil {
		return
	}
	for c.command() == nil {
	}
}

func (c *conn) encrypt() error {
	t := tls.Server(c.net, &tls.Config{Certificates: []tls.Certificate{c.server.script.Certificate.pair}, MinVersion: tls.VersionTLS12})
	if err := t.Handshake(); err != nil {
		return err
	}
	c.use(t)
	c.tls = true
	return nil
}

// answer does what the script says about e, else says ordinary. It returns
// errDropped when the connection is over.
func (c *conn) answer(e Event, ordinary string) error {
	_, err := c.answered(e, ordinary)
	return err
}

func (c *conn) answered(e Event, ordinary string) (Reply, error) {
	e.Conn, e.Mail, e.Rcpt = c.id, c.mail, c.to
	reply := Reply{Text: ordinary}
	if c.server.script.Reply != nil {
		if r := c.server.script.Reply(e); r != nil {
			reply = *r
		}
	}
	return reply, c.do(reply)
}

func (c *conn) do(r Reply) error {
	if r.After > 0 {
		// A client that goes away meanwhile ends the wait.
		c.net.SetReadDeadline(time.Now().Add(r.After)) // seen at the read
		_, err := c.r.Peek(1)
		c.net.SetReadDeadline(time.Time{}) // as above
		var n net.Error
		if err == nil {
			time.Sleep(r.After) // it pipelines: wait it out
		} else if !errors.As(err, &n) || !n.Timeout() {
			return errDropped
		}
	}
	if r.Text != "" {
		if _, err := io.WriteString(c.net, strings.ReplaceAll(r.Text, "\n", "\r\n")+"\r\n"); err != nil {
			return err
		}
	}
	if r.Deaf {
		<-c.server.closing
	}
	if r.Drop || r.Deaf {
		return errDropped
	}
	return nil
}

func (c *conn) line() (string, error) {
	if idle := c.server.script.Idle; idle > 0 {
		c.net.SetReadDeadline(time.Now().Add(idle)) // seen at the read
		defer c.net.SetReadDeadline(time.Time{})    // as above
	}
	l, err := c.r.ReadString('\n')
	return strings.TrimRight(l, "\r\n"), err
}

func (c *conn) command() error {
	l, err := c.line()
	var n net.Error
	if errors.As(err, &n) && n.Timeout() {
		return c.do(c.server.script.IdleReply)
	}
	if err != nil {
		return err
	}
	verb, arg, _ := strings.Cut(l, " ")
	verb = strings.ToUpper(verb)
	c.note(verb, arg, l)
	e := Event{Verb: verb, Arg: arg}
	switch verb {
	case "EHLO":
		ext := slices.Clone(c.server.script.Extensions)
		if c.server.script.Certificate != nil && !c.tls {
			ext = append(ext, "STARTTLS")
		}
		lines := append([]string{"relay.test"}, ext...)
		for i, l := range lines {
			sep := "-"
			if i == len(lines)-1 {
				sep = " "
			}
			lines[i] = "250" + sep + l
		}
		return c.answer(e, strings.Join(lines, "\n"))
	case "STARTTLS":
		if c.server.script.Certificate == nil || c.tls {
			return c.answer(e, "502 5.5.1 not offered")
		}
		if err := c.answer(e, "220 2.0.0 go ahead"); err != nil {
			return err
		}
		return c.encrypt()
	case "AUTH":
		c.login(arg)
		return c.answer(e, "235 2.7.0 welcome")
	case "MAIL":
		c.server.mu.Lock()
		c.server.mails++
		c.mail = c.server.mails
		c.server.mu.Unlock()
		c.from, c.params = address(arg)
		c.to = ""
		return c.answer(e, "250 2.1.0 ok")
	case "RCPT":
		c.to, _ = address(arg)
		return c.answer(e, "250 2.1.5 ok")
	case "DATA":
		r, err := c.answered(e, "354 go ahead")
		if err != nil || !strings.HasPrefix(r.Text, "354") {
			return err
		}
		return c.content()
	case "QUIT":
		if err := c.answer(e, "221 2.0.0 bye"); err != nil {
			return err
		}
		return errDropped
	case "HELO", "RSET", "NOOP":
		return c.answer(e, "250 2.0.0 ok")
	default:
		return c.answer(e, "502 5.5.2 what?")
	}
}

// content reads up to the dot and keeps the message unless the script refuses it.
func (c *conn) content() error {
	var data strings.Builder
	for {
		l, err := c.r.ReadString('\n')
		if err != nil {
			return err
		}
		if l == ".\r\n" {
			break
		}
		data.WriteString(strings.TrimPrefix(l, "."))
	}
	m := Message{Conn: c.id, From: c.from, To: c.to, Params: c.params, Data: data.String(), Time: time.Now(), TLS: c.tls}
	e := Event{Conn: c.id, Mail: c.mail, Rcpt: c.to, Verb: Dot}
	reply := Reply{Text: "250 2.0.0 queued as 42"}
	if c.server.script.Reply != nil {
		if r := c.server.script.Reply(e); r != nil {
			reply = *r
		}
	}
	refused := strings.HasPrefix(reply.Text, "4") || strings.HasPrefix(reply.Text, "5")
	if !reply.Lose && !refused {
		c.server.mu.Lock()
		c.server.messages = append(c.server.messages, m)
		c.server.mu.Unlock()
	}
	return c.do(reply)
}

func (c *conn) login(arg string) {
	_, b64, _ := strings.Cut(arg, " ")
	plain, err := base64.StdEncoding.DecodeString(b64)
	if parts := strings.Split(string(plain), "\x00"); err == nil && len(parts) == 3 {
		c.server.mu.Lock()
		c.server.logins = append(c.server.logins, parts[1]+":"+parts[2])
		c.server.mu.Unlock()
	}
}

func (c *conn) note(verb, arg, line string) {
	if verb == "AUTH" {
		mech, _, _ := strings.Cut(arg, " ")
		line = "AUTH " + mech
	}
	c.server.mu.Lock()
	defer c.server.mu.Unlock()
	c.server.commands = append(c.server.commands, fmt.Sprintf("%d: %s", c.id, line))
}

// address takes "FROM:<a@b> BODY=8BITMIME" apart.
func address(arg string) (addr, params string) {
	_, rest, _ := strings.Cut(arg, "<")
	i := strings.LastIndex(rest, ">")
	if i < 0 {
		return "", arg
	}
	return rest[:i], strings.TrimSpace(rest[i+1:])
}

// Certificate is a self-signed certificate of one host.
type Certificate struct {
	pair tls.Certificate
	// PEM is the certificate, for a client's list of trusted ones.
	PEM []byte
}

// NewCertificate makes one for host, a name or an IP address, valid from an
// hour ago for lifetime. A negative lifetime gives one that has expired.
func NewCertificate(host string, lifetime time.Duration) (*Certificate, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("make a key: %w", err)
	}
	now := time.Now()
	t := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: host},
		NotBefore: now.Add(min(0, 2*lifetime) - time.Hour), NotAfter: now.Add(lifetime),
		IsCA: true, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	if ip := net.ParseIP(host); ip != nil {
		t.IPAddresses = []net.IP{ip}
	} else {
		t.DNSNames = []string{host}
	}
	der, err := x509.CreateCertificate(rand.Reader, t, t, key.Public(), key)
	if err != nil {
		return nil, fmt.Errorf("make a certificate for %s: %w", host, err)
	}
	return &Certificate{
		pair: tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key},
		PEM:  pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}),
	}, nil
}
