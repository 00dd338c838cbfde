package mailtest

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"mime/quotedprintable"
	"net/mail"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/headwayq/headway/internal/e2e"
)

// addressMax is how long an address is at most, by RFC 5321.
const addressMax = 254

// Mail is one mail, and the payload of its task.
type Mail struct {
	To      string `json:"to"`
	Subject string `json:"subject"`
	Text    string `json:"text"`
}

// String keeps a mail that ends up in a log line from giving anything away.
func (m Mail) String() string { return "mail to " + Mask(m.To) }

// GoString keeps %#v as quiet as %v.
func (m Mail) GoString() string { return m.String() }

// Recipient is the key of the narrow rule: upper case makes no other recipient.
func (m Mail) Recipient() string { return strings.ToLower(m.To) }

// Mask is what may be shown of an address: "jane@example.com" is "j…@e…".
func Mask(address string) string {
	name, domain, ok := strings.Cut(address, "@")
	if !ok || len(name) < 2 || len(domain) < 2 || !isAddress(address) {
		return "…"
	}
	return name[:1] + "…@" + domain[:1] + "…"
}

// Encode is the mail as of RFC 5322, from an address, of a task that was granted its permits then.
func (m Mail) Encode(from, task string, granted time.Time) []byte {
	var b bytes.Buffer
	for _, h := range [][2]string{
		{"From", from},
		{"To", m.To},
		{"Subject", mime.QEncoding.Encode("utf-8", m.Subject)},
		{"Date", granted.UTC().Format(time.RFC1123Z)},
		{"Message-ID", messageID(from, task)},
		{GrantedHeader, strconv.FormatInt(granted.UnixMicro(), 10)},
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
func messageID(from, task string) string {
	return "<" + strings.ReplaceAll(task, ":", ".") + "@" + from[strings.Index(from, "@")+1:] + ">"
}

// Decode reads the payload of a task. Its error never quotes it.
func Decode(payload []byte) (Mail, error) {
	var m Mail
	if json.Unmarshal(payload, &m) != nil || len(m.Faults()) > 0 {
		return Mail{}, errors.New("the payload is no mail that can be sent")
	}
	return m, nil
}

// Sample returns the built-in input: n mails, four to a recipient, two of them in a
// row. The domain is kept for examples by RFC 2606.
func Sample(n int) []Mail {
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

// ReadMails reads the mails of a CSV file with the columns "to", "subject" and "text", by
// the rules of [e2e.ReadCSV]. With faults there are no mails, and the error tells all of
// them, without quoting an address or a mail.
func ReadMails(path string) (mails []Mail, err error) {
	err = e2e.ReadFile(path, nil, func(r io.Reader) error {
		return e2e.ReadCSV(r, []string{"to", "subject", "text"}, func(_ int, fields []string) []string {
			m := Mail{To: fields[0], Subject: fields[1], Text: fields[2]}
			mails = append(mails, m)
			return m.Faults()
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

// Faults says why m can't be sent, without quoting it.
func (m Mail) Faults() []string {
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

// Recipients is how many recipients mails have, and how many of them the one has
// that gets most.
func Recipients(mails []Mail) (recipients, most int) {
	got := map[string]int{}
	for _, m := range mails {
		got[m.Recipient()]++
		most = max(most, got[m.Recipient()])
	}
	return len(got), most
}
