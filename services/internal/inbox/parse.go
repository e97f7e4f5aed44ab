package inbox

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/emersion/go-message"
	_ "github.com/emersion/go-message/charset" // bodies and names in other charsets than UTF-8
	"github.com/emersion/go-message/mail"
)

// envelope is what SMTP said about a message. In the file it stands before the
// message in the fields that mail servers use for it, so that the file is an
// ordinary mail to any other program; Received is always the last of them.
type envelope struct {
	sender     string
	recipients []string
	received   time.Time
}

const (
	fieldSender    = "Return-Path: "
	fieldRecipient = "Delivered-To: "
	fieldReceived  = "Received: by inbox.tocsin with SMTP; "
	crlf           = "\r\n"
)

func appendEnvelope(b []byte, e envelope) []byte {
	b = append(b, fieldSender+"<"+e.sender+">"+crlf...)
	for _, r := range e.recipients {
		b = append(b, fieldRecipient+r+crlf...)
	}
	return append(b, fieldReceived+e.received.UTC().Format(time.RFC3339Nano)+crlf...)
}

// cutEnvelope undoes appendEnvelope. A file without an envelope, put there by
// somebody else, is all message.
func cutEnvelope(file []byte) (envelope, []byte) {
	var e envelope
	rest := file
	for {
		line, after, found := bytes.Cut(rest, []byte(crlf))
		if !found {
			return envelope{}, file
		}
		rest = after
		l := string(line)
		switch {
		case strings.HasPrefix(l, fieldSender):
			e.sender = strings.Trim(l[len(fieldSender):], "<>")
		case strings.HasPrefix(l, fieldRecipient):
			e.recipients = append(e.recipients, l[len(fieldRecipient):])
		case strings.HasPrefix(l, fieldReceived):
			t, err := time.Parse(time.RFC3339Nano, l[len(fieldReceived):])
			if err != nil {
				return envelope{}, file
			}
			e.received = t
			return e, rest
		default:
			return envelope{}, file
		}
	}
}

// summarize reads the file of message number n.
func summarize(n uint64, file []byte) Summary {
	e, raw := cutEnvelope(file)
	s := parse(raw).Summary
	s.ID = idOf(n)
	s.ReceiveTime = e.received
	s.Sender = e.sender
	s.Recipients = e.recipients
	return s
}

// parse reads a message; what it cannot read it leaves out, naming it in
// Problem. The summary lacks what only the inbox knows.
func parse(raw []byte) Message {
	m := Message{Raw: raw, Summary: Summary{SizeBytes: len(raw)}}
	r, err := mail.CreateReader(bytes.NewReader(raw))
	if err != nil && !message.IsUnknownCharset(err) {
		m.Problem = fmt.Sprintf("not a mail: %v", err)
		m.Text = string(raw)
		return m
	}
	m.problem(err)
	for f := r.Header.Fields(); f.Next(); {
		v, err := f.Text()
		if err != nil {
			v = f.Value()
		}
		m.Header = append(m.Header, Field{Name: f.Key(), Value: v})
	}
	m.From, m.To, m.Subject = m.Get("From"), m.Get("To"), m.Get("Subject")
	// Both are optional in a mail that a sink has to show: what cannot be read stays empty.
	m.Date, _ = r.Header.Date()
	m.MessageID, _ = r.Header.MessageID()
	for {
		part, err := r.NextPart()
		if errors.Is(err, io.EOF) {
			return m
		}
		if err != nil && !message.IsUnknownCharset(err) {
			m.problem(err)
			return m
		}
		m.problem(err)
		inline, ok := part.Header.(*mail.InlineHeader)
		if !ok {
			continue
		}
		body, err := io.ReadAll(part.Body)
		m.problem(err)
		// An unreadable Content-Type is shown as text, as RFC 2045 5.2 has it.
		switch t, _, _ := inline.ContentType(); {
		case t == "text/html" && m.HTML == "":
			m.HTML = string(body)
		case t != "text/html" && m.Text == "":
			m.Text = string(body)
		}
	}
}

// problem keeps the first error.
func (m *Message) problem(err error) {
	if err != nil && m.Problem == "" {
		m.Problem = err.Error()
	}
}
