package mailer

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"net/mail"
	"strings"

	gomail "github.com/wneessen/go-mail"
	"golang.org/x/net/idna"

	outboxv1 "github.com/tocsin/tocsin/proto/gen/tocsin/outbox/v1"
)

// traceHeader has the trace id, so that a forwarded mail can be looked up.
const traceHeader = "X-Tocsin-Trace-Id"

// maxReferences bounds a header that grows with an outage; the newest stay.
const maxReferences = 20

// message is a mail ready for the wire; the same for each attempt of a mail.
type message struct {
	// to is the envelope's recipient in angle brackets.
	to string
	// utf8: the recipient's address cannot be written without SMTPUTF8.
	utf8 bool
	data []byte
}

// compose makes the message of m. An error means that no attempt can succeed.
func (m *Mailer) compose(ml *outboxv1.Mail, traceID string) (message, error) {
	to, err := recipient(ml.GetAddress())
	if err != nil {
		return message{}, err
	}
	c, err := m.Render(ml)
	if err != nil {
		return message{}, err
	}
	for _, id := range append([]string{ml.GetMessageId()}, ml.GetReferences()...) {
		if err := checkID(id); err != nil {
			return message{}, err
		}
	}
	sum := sha256.Sum256([]byte(ml.GetMessageId()))
	msg := gomail.NewMsg(gomail.WithNoDefaultUserAgent(), gomail.WithBoundary("tocsin-"+hex.EncodeToString(sum[:12])))
	msg.FromMailAddress(m.from)
	msg.AddToMailAddress(&mail.Address{Name: oneLine(ml.GetRecipientName()), Address: to})
	msg.Subject(oneLine(c.Subject))
	msg.SetDateWithValue(ml.GetDate().AsTime())
	msg.SetMessageIDWithValue(ml.GetMessageId())
	if refs := ml.GetReferences(); len(refs) > 0 {
		refs = refs[max(0, len(refs)-maxReferences):]
		msg.SetGenHeader(gomail.HeaderInReplyTo, "<"+refs[len(refs)-1]+">")
		msg.SetGenHeader(gomail.HeaderReferences, "<"+strings.Join(refs, "> <")+">")
	}
	msg.SetGenHeader("Auto-Submitted", "auto-generated")
	if traceID != "" {
		msg.SetGenHeader(traceHeader, traceID)
	}
	msg.SetBodyString(gomail.TypeTextPlain, c.Text)
	msg.AddAlternativeString(gomail.TypeTextHTML, c.HTML)
	var data bytes.Buffer
	if _, err := msg.WriteTo(&data); err != nil {
		return message{}, fmt.Errorf("write the message: %w", err)
	}
	return message{to: (&mail.Address{Address: to}).String(), utf8: !ascii(to), data: data.Bytes()}, nil
}

var errAddress = errors.New("the recipient's address is not valid")

// recipient checks an address and writes it in ASCII where that can be: a
// domain has an ASCII form, what is before the @ has none (RFC 6531).
func recipient(address string) (string, error) {
	a, err := mail.ParseAddress(address)
	if err != nil {
		return "", fmt.Errorf("%w: %w", errAddress, err)
	}
	at := strings.LastIndexByte(a.Address, '@')
	local, domain := a.Address[:at], a.Address[at+1:]
	if !ascii(domain) {
		if domain, err = idna.Lookup.ToASCII(domain); err != nil {
			return "", fmt.Errorf("%w: its domain: %w", errAddress, err)
		}
	}
	return local + "@" + domain, nil
}

// checkID refuses what would break out of a header, or be no id to a mail program.
func checkID(id string) error {
	if id == "" || strings.ContainsFunc(id, func(r rune) bool { return r <= ' ' || r >= 0x7f || r == '<' || r == '>' }) {
		return fmt.Errorf("%q cannot be a Message-ID", id)
	}
	return nil
}
