package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"mime/quotedprintable"
	"net"
	"net/mail"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/emersion/go-smtp"
	"github.com/hibiken/asynq"
	"go.uber.org/zap"

	"github.com/headwayq/headway/internal/e2e"
	"github.com/headwayq/headway/internal/e2e/mailtest"
	"github.com/headwayq/headway/queue"
	"github.com/headwayq/headway/throttle"
	"github.com/headwayq/headway/worker"
)

const (
	typeSend  = "mail:send"
	typeStart = "mail:start"

	ruleRecipient = "recipient"
	ruleProvider  = "provider"
	ruleGate      = "daytime"

	sender = "shop@example.com"

	// sendFor bounds one mail, and busyFor is how long a server is left alone that
	// says it is busy.
	sendFor = 10 * time.Second
	busyFor = 2 * time.Second
)

// Mail is one mail, and the payload of its task.
type Mail struct {
	To      string `json:"to"`
	Subject string `json:"subject"`
	Text    string `json:"text"`
}

// String keeps a mail that ends up in a log line from giving anything away.
func (m Mail) String() string { return "mail to " + mask(m.To) }

// GoString keeps %#v as quiet as %v.
func (m Mail) GoString() string { return m.String() }

// recipient is the key of the narrow rule: upper case makes no other recipient.
func (m Mail) recipient() string { return strings.ToLower(m.To) }

// mask is what may be shown of an address: "jane@example.com" is "j…@e…".
func mask(address string) string {
	name, domain, ok := strings.Cut(address, "@")
	if !ok || len(name) < 2 || len(domain) < 2 || !isAddress(address) {
		return "…"
	}
	return name[:1] + "…@" + domain[:1] + "…"
}

// policyOf are the rules for mails: one per recipient in an hour of the clock, what the
// provider takes from all of us, and the hours.
func policyOf(cfg config, zone *time.Location) queue.Policy {
	return queue.Policy{Type: typeSend, Rules: []queue.Rule{
		{Name: ruleRecipient, Limit: throttle.Sliding(1, cfg.perRecipient()), Key: recipientKey},
		{Name: ruleProvider, Limit: cfg.rate, Key: queue.ConstantKey("smtp")},
		{Name: ruleGate, Gate: cfg.gate, Zone: func(*asynq.Task) (*time.Location, error) { return zone, nil }},
	}}
}

func recipientKey(task *asynq.Task) (string, error) {
	m, err := decodeMail(task.Payload())
	return m.recipient(), err
}

// decodeMail never quotes the payload.
func decodeMail(payload []byte) (Mail, error) {
	var m Mail
	if json.Unmarshal(payload, &m) != nil || len(m.faults()) > 0 {
		return Mail{}, errors.New("the payload is no mail that can be sent")
	}
	return m, nil
}

// mailer is the handler of mail:send. It runs under a grant: that the mail may go now is
// settled, and it only sends. It is safe for concurrent use.
type mailer struct {
	server string // host:port
	log    *zap.Logger
}

// ProcessTask implements [asynq.Handler].
func (s *mailer) ProcessTask(ctx context.Context, task *asynq.Task) error {
	m, err := decodeMail(task.Payload())
	if err != nil {
		return fmt.Errorf("%w: %w", err, asynq.SkipRetry)
	}
	d, ok := worker.GrantFrom(ctx)
	if !ok {
		return errors.New("no grant: the task type has no policy")
	}
	id, _ := asynq.GetTaskID(ctx)
	if err := s.send(ctx, m, id, d.At); err != nil {
		err = answer(err)
		s.log.Warn("mail not sent", zap.Stringer("mail", m), zap.String("task", id), zap.Error(err))
		return err
	}
	return nil
}

// errNotConnected: nothing has reached the server.
var errNotConnected = errors.New("the SMTP server can't be reached")

// send hands the mail to the server, on a connection of its own. A mail that is tried
// again has the same Message-ID: a server that took it, and whose answer was lost, can
// tell.
func (s *mailer) send(ctx context.Context, m Mail, id string, granted time.Time) error {
	ctx, cancel := context.WithTimeout(ctx, sendFor)
	defer cancel()
	conn, err := new(net.Dialer).DialContext(ctx, "tcp", s.server)
	if err != nil {
		return errNotConnected
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { _ = conn.Close() })()
	c := smtp.NewClient(conn)
	if err := c.SendMail(sender, []string{m.To}, bytes.NewReader(m.encode(id, granted))); err != nil {
		return err
	}
	_ = c.Quit() // the mail is theirs already
	return nil
}

// encode is the mail as of RFC 5322.
func (m Mail) encode(id string, granted time.Time) []byte {
	var b bytes.Buffer
	for _, h := range [][2]string{
		{"From", sender},
		{"To", m.To},
		{"Subject", mime.QEncoding.Encode("utf-8", m.Subject)},
		{"Date", granted.UTC().Format(time.RFC1123Z)},
		{"Message-ID", messageID(id)},
		{mailtest.GrantedHeader, strconv.FormatInt(granted.UnixMicro(), 10)},
		{"MIME-Version", "1.0"},
		{"Content-Type", "text/plain; charset=utf-8"},
		{"Content-Transfer-Encoding", "quoted-printable"},
	} {
		b.WriteString(h[0] + ": " + h[1] + "\r\n")
	}
	b.WriteString("\r\n")
	w := quotedprintable.NewWriter(&b)
	_, _ = w.Write([]byte(m.Text)) // into memory
	_ = w.Close()
	return b.Bytes()
}

// messageID is made of a task's id, batch:<batch>:<element>.
func messageID(task string) string {
	return "<" + strings.ReplaceAll(task, ":", ".") + "@" + sender[strings.Index(sender, "@")+1:] + ">"
}

// answer is what becomes of an error of [mailer.send]. A server's own words are left
// out, for they like to quote the address.
func answer(err error) error {
	said, ok := errors.AsType[*smtp.SMTPError](err)
	switch {
	case errors.Is(err, errNotConnected):
		return worker.NotCharged(err)
	case !ok: // it may have been sent
		return errors.New("the connection to the SMTP server broke")
	}
	err = fmt.Errorf("the SMTP server said %d", said.Code)
	switch {
	case said.Code == 421: // it is busy as a whole, and all wait
		return &worker.RetryAfterError{Err: err, After: busyFor, Rule: ruleProvider}
	case said.Code == 450: // this mailbox is, and what goes there waits
		return &worker.RetryAfterError{Err: err, After: busyFor, Rule: ruleRecipient}
	case said.Temporary(): // asynq tries again
		return err
	}
	return fmt.Errorf("%w: %w", err, asynq.SkipRetry)
}

// addressMax is how long an address is at most, by RFC 5321.
const addressMax = 254

// sample returns the built-in input: n mails, four to a recipient, two of them in a
// row. The domain is kept for examples by RFC 2606.
func sample(n int) []Mail {
	topics := []Mail{
		{Subject: "Your order", Text: "We have your order."},
		{Subject: "Your invoice", Text: "The invoice is attached.\n\nNot to this mail."},
		{Subject: "Your parcel", Text: "Your parcel is on its way."},
		{Subject: "Was all well?", Text: "Tell us how we did."},
	}
	recipients := max(1, (n+3)/4)
	mails := make([]Mail, n)
	for i := range mails {
		half, pair := i/(2*recipients), i%(2*recipients)
		m := topics[2*half+i%2]
		m.To = fmt.Sprintf("reader%d@example.com", 1+pair/2)
		mails[i] = m
	}
	return mails
}

// readMails reads the mails of a CSV file with the columns "to", "subject" and "text", by
// the rules of [e2e.ReadCSV]. With faults there are no mails, and the error tells all of
// them, without quoting an address or a mail.
func readMails(path string) (mails []Mail, err error) {
	err = e2e.ReadFile(path, nil, func(r io.Reader) error {
		return e2e.ReadCSV(r, []string{"to", "subject", "text"}, func(fields []string) []string {
			m := Mail{To: fields[0], Subject: fields[1], Text: fields[2]}
			mails = append(mails, m)
			return m.faults()
		})
	})
	if err == nil && len(mails) == 0 {
		err = &e2e.InputError{Faults: []e2e.Fault{{Line: 1, What: "no mails after the header"}}}
	}
	if err != nil {
		return nil, err
	}
	return mails, nil
}

// faults says why m can't be sent, without quoting it.
func (m Mail) faults() []string {
	var faults []string
	if !isAddress(m.To) {
		faults = append(faults, "to is no mail address such as name@example.com, in ASCII")
	}
	for _, f := range []struct{ name, text string }{{"subject", m.Subject}, {"text", m.Text}} {
		if !utf8.ValidString(f.text) {
			faults = append(faults, f.name+" is not UTF-8")
		} else if strings.TrimSpace(f.text) == "" {
			faults = append(faults, f.name+" is empty")
		}
	}
	if strings.ContainsFunc(m.Subject, unicode.IsControl) {
		faults = append(faults, "subject has a line break, or another control character")
	}
	return faults
}

// isAddress says whether s is an address and nothing else.
func isAddress(s string) bool {
	if len(s) > addressMax || strings.ContainsFunc(s, func(r rune) bool { return r <= ' ' || r > '~' }) {
		return false
	}
	a, err := mail.ParseAddress(s)
	return err == nil && a.Name == "" && a.Address == s
}

// recipientsOf is how many recipients mails have, and how many of them the one has
// that gets most.
func recipientsOf(mails []Mail) (recipients, most int) {
	got := map[string]int{}
	for _, m := range mails {
		got[m.recipient()]++
		most = max(most, got[m.recipient()])
	}
	return len(got), most
}
