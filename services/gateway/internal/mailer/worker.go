package mailer

import (
	"context"
	"errors"
	"fmt"
	"net/textproto"
	"strings"
	"time"
	"unicode/utf8"

	outboxv1 "github.com/tocsin/tocsin/proto/gen/tocsin/outbox/v1"
)

// worker has one connection at most and makes one attempt at a time.
type worker struct {
	*Mailer
	conn *connection
}

// run works until the mailer stops.
func (w *worker) run() {
	defer w.quit()
	idle := time.NewTimer(w.cfg.IdleTimeout)
	defer idle.Stop()
	for {
		w.mu.Lock()
		j := w.queue.pop()
		w.mu.Unlock()
		if j != nil {
			w.attempt(j)
			w.mu.Lock()
			w.queue.done(j)
			w.mu.Unlock()
			idle.Reset(w.cfg.IdleTimeout)
			continue
		}
		select {
		case <-w.wake:
		case <-idle.C:
			w.quit()
		case <-w.stop:
			return
		}
	}
}

// quit ends the connection politely.
func (w *worker) quit() {
	if w.conn != nil {
		w.conn.quit()
		w.conn = nil
	}
}

// drop ends the connection at once.
func (w *worker) drop() {
	if w.conn != nil {
		w.conn.close()
		w.conn = nil
	}
}

func (w *worker) attempt(j *job) {
	ctx, span := w.startSpan(j.mail)
	r := w.send(ctx, j)
	w.endSpan(span, r)
	if r.GetOutcome() == outboxv1.Result_UNCERTAIN {
		w.uncertain.Add(ctx, 1)
	}
	w.Log.DebugContext(ctx, "mail attempt", "account_id", r.GetAccountId(), "mail_id", r.GetMailId(), "attempt", r.GetAttempt(),
		"outcome", r.GetOutcome().String(), "reply_code", r.GetReplyCode(), "enhanced_code", r.GetEnhancedCode(), "text", r.GetText())
	j.done <- r
	// What was refused leaves the connection usable, after the result is told.
	if w.conn != nil && w.conn.open {
		if err := w.conn.reset(); err != nil {
			w.drop()
		}
	}
}

// send makes the attempt j. A kept connection that turns out to be dead before
// anything was sent costs nothing: the attempt goes on with a fresh one.
func (w *worker) send(ctx context.Context, j *job) *outboxv1.Result {
	msg, err := w.compose(j.mail, traceID(j.mail))
	if err != nil {
		rep := reply{enhanced: "5.6.0", text: clip(err.Error())}
		if errors.Is(err, errAddress) {
			rep.enhanced = "5.1.3"
		} else {
			w.Log.ErrorContext(ctx, "a mail cannot be written; it is given up", "account_id", j.mail.GetAccountId(), "mail_id", j.mail.GetMailId(), "err", err)
		}
		return w.result(j, outboxv1.Result_REJECTED, rep)
	}
	if w.conn != nil {
		if r := w.transact(ctx, j, msg); r != nil {
			return r
		}
	}
	if r := w.connect(ctx, j); r != nil {
		return r
	}
	return w.transact(ctx, j, msg)
}

// connect gives the worker a fresh connection, waiting for the relay's pause to
// end; nil is success.
func (w *worker) connect(ctx context.Context, j *job) *outboxv1.Result {
	if wait := time.Until(w.relay.over()); wait > 0 {
		t := time.NewTimer(wait)
		defer t.Stop()
		select {
		case <-t.C:
		case <-w.stop:
			return w.notBegun(j, "the gateway stops")
		}
	}
	if why := j.over(); why != "" {
		return w.notBegun(j, why)
	}
	c, err := w.dial(w.hard)
	if err == nil {
		w.conn = c
		return nil
	}
	rep := replyOf(err)
	w.unusable(ctx, rep, err)
	return w.result(j, outboxv1.Result_RETRYING, rep)
}

// unusable notes that the relay takes no mail at all. The relay's words are
// not logged: they may have an address or the user's name in them.
func (w *worker) unusable(ctx context.Context, rep reply, err error) {
	if w.hard.Err() != nil {
		return // we hung up ourselves
	}
	var least time.Duration
	if loginRefused(rep.code) {
		least = pauseLogin
	}
	first := w.relay.failed(least)
	switch {
	case !first: // once is enough until it is usable again
	case loginRefused(rep.code):
		w.Log.ErrorContext(ctx, "the mail relay refuses our login; mails are kept (smtp.username, smtp.password)",
			"relay", w.cfg.relay(), "reply_code", rep.code, "enhanced_code", rep.enhanced)
	case rep.code != 0:
		w.Log.WarnContext(ctx, "the mail relay takes no mail now; mails wait",
			"relay", w.cfg.relay(), "reply_code", rep.code, "enhanced_code", rep.enhanced)
	default:
		w.Log.WarnContext(ctx, "the mail relay cannot be reached or trusted; mails wait", "relay", w.cfg.relay(), "err", err)
	}
}

// usable notes that the relay answers to mails.
func (w *worker) usable(ctx context.Context) {
	if w.relay.worked() {
		w.Log.InfoContext(ctx, "the mail relay is usable again", "relay", w.cfg.relay())
	}
}

// transact sends the message on the worker's connection. It returns nil if the
// connection was kept from before and died before anything was sent.
func (w *worker) transact(ctx context.Context, j *job, msg message) *outboxv1.Result {
	c := w.conn
	kept := c.used
	c.used = true
	c.open = false
	if msg.utf8 && !c.utf8() {
		return w.result(j, outboxv1.Result_REJECTED,
			reply{enhanced: "5.6.7", text: "the recipient's address needs SMTPUTF8, which the relay does not offer"})
	}
	if why := j.over(); why != "" {
		return w.notBegun(j, why)
	}
	err := c.envelope(w.from.Address, msg)
	if err == nil && !j.held() {
		c.open = true // RSET
		return w.notBegun(j, "its lease ended before DATA")
	}
	if err == nil {
		err = c.data()
	}
	if err != nil {
		rep := replyOf(err)
		gone := rep.code == 0 || rep.code == 421
		if gone {
			w.drop()
		} else {
			c.open = true
		}
		switch {
		case gone && kept && w.hard.Err() == nil:
			return nil
		case gone || loginRefused(rep.code):
			w.unusable(ctx, rep, err)
			return w.result(j, outboxv1.Result_RETRYING, rep)
		case rep.code < 500 || rep.code == badSequence:
			w.usable(ctx)
			return w.result(j, outboxv1.Result_RETRYING, rep)
		default:
			w.usable(ctx)
			return w.result(j, outboxv1.Result_REJECTED, rep)
		}
	}
	w.usable(ctx)
	if err := c.content(msg.data, j.until()); err != nil {
		w.drop()
		return w.result(j, outboxv1.Result_RETRYING, reply{text: clip(fmt.Sprintf("the content was not taken: %v", err))})
	}
	return w.finish(j, c)
}

// finish sends the final dot, if the lease still holds, and waits for the answer.
func (w *worker) finish(j *job, c *connection) *outboxv1.Result {
	if !j.held() {
		w.drop()
		return w.result(j, outboxv1.Result_RETRYING, reply{text: "its lease ended before the final dot"})
	}
	text, err := c.finish()
	if err == nil {
		rep := replyText(250, text)
		return w.result(j, outboxv1.Result_SENT, rep)
	}
	rep := replyOf(err)
	if rep.code == 0 || rep.code == 421 {
		w.drop()
	}
	switch {
	case rep.code >= 500:
		return w.result(j, outboxv1.Result_REJECTED, rep)
	case rep.code >= 400:
		return w.result(j, outboxv1.Result_RETRYING, rep)
	case rep.code >= 200 && rep.code < 300:
		return w.result(j, outboxv1.Result_SENT, rep)
	default:
		w.drop()
		return w.result(j, outboxv1.Result_UNCERTAIN, rep)
	}
}

// reply is what the relay said, or what went wrong: code is 0 then.
type reply struct {
	code     int
	enhanced string
	text     string
}

// badSequence is the reply of a relay that has lost track of the conversation:
// it says nothing about the mail.
const badSequence = 503

// loginRefused has the codes that speak of our login and encryption and not of
// a mail (RFC 4954 6, RFC 3207 4).
func loginRefused(code int) bool {
	switch code {
	case 530, 534, 535, 538:
		return true
	}
	return false
}

// replyOf takes the relay's reply out of an error; without one, it is the error.
func replyOf(err error) reply {
	var t *textproto.Error
	if errors.As(err, &t) {
		return replyText(t.Code, t.Msg)
	}
	return reply{text: clip(err.Error())}
}

func replyText(code int, text string) reply {
	return reply{code: code, enhanced: enhanced(code, text), text: clip(text)}
}

// enhanced is the RFC 3463 code that text begins with, or "".
func enhanced(code int, text string) string {
	first, _, _ := strings.Cut(text, " ")
	parts := strings.Split(first, ".")
	if len(parts) != 3 || parts[0] != string(rune('0'+code/100)) {
		return ""
	}
	for _, p := range parts[1:] {
		if len(p) < 1 || len(p) > 3 || strings.Trim(p, "0123456789") != "" {
			return ""
		}
	}
	return first
}

// maxText bounds the text of a result, in bytes.
const maxText = 512

// clip makes one line of at most maxText bytes.
func clip(s string) string {
	s = oneLine(strings.ToValidUTF8(s, "?"))
	if len(s) <= maxText {
		return s
	}
	s = s[:maxText]
	for !utf8.ValidString(s) {
		s = s[:len(s)-1]
	}
	return s
}
