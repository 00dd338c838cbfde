// Package mailtest is what a program that sends mails is tried with: mails, an SMTP server
// that throws them away, a judge of the server's log, and a clock on which an hour takes
// seconds.
package mailtest

import (
	"context"
	"io"
	"net"
	"net/mail"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/emersion/go-smtp"
	"go.uber.org/zap"
)

// GrantedHeader is the header in which a mail says when Redis let it through, in µs since
// 1970: for the judgement.
const GrantedHeader = "X-Granted-Us"

const sessionTimeout = 10 * time.Second

// Arrival is a mail that the server accepted.
type Arrival struct {
	ID      string    // its Message-ID
	To      string    // in clear: never shown
	At      time.Time // by the server's clock
	Granted time.Time // by Redis' clock, as the mail says
}

// Server is an SMTP server that accepts mails, notes when they came and throws them away. It is
// safe for concurrent use.
type Server struct {
	smtp  *smtp.Server
	addr  string
	serve sync.WaitGroup

	refuse func(to string) error

	mu  sync.Mutex
	log []Arrival
}

// Start listens on a free port of this machine. Refuse answers a recipient in place of the
// server, if it likes to; nil accepts all.
func Start(log *zap.Logger, refuse func(to string) error) (*Server, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	s := &Server{addr: l.Addr().String(), refuse: refuse}
	s.smtp = smtp.NewServer(smtp.BackendFunc(func(*smtp.Conn) (smtp.Session, error) { return &delivery{server: s}, nil }))
	s.smtp.Domain = "localhost"
	s.smtp.ReadTimeout, s.smtp.WriteTimeout = sessionTimeout, sessionTimeout
	s.smtp.ErrorLog = zap.NewStdLog(log.Named("smtp"))
	s.serve.Go(func() {
		if err := s.smtp.Serve(l); err != nil {
			log.Error("the SMTP server stopped", zap.Error(err))
		}
	})
	return s, nil
}

// Addr is the server's host:port.
func (s *Server) Addr() string { return s.addr }

// Close lets mails under way end, for a second.
func (s *Server) Close() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	if s.smtp.Shutdown(ctx) != nil {
		_ = s.smtp.Close()
	}
	s.serve.Wait()
}

// Arrivals are the mails so far, in the order in which they were accepted.
func (s *Server) Arrivals() []Arrival {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.log)
}

func (s *Server) accept(a Arrival) {
	s.mu.Lock()
	defer s.mu.Unlock()
	a.At = time.Now()
	s.log = append(s.log, a)
}

// delivery is one connection.
type delivery struct {
	server *Server
	to     []string
}

// Mail implements [smtp.Session], as the methods below.
func (d *delivery) Mail(string, *smtp.MailOptions) error {
	d.to = nil
	return nil
}

// Rcpt takes a recipient.
func (d *delivery) Rcpt(to string, _ *smtp.RcptOptions) error {
	if d.server.refuse != nil {
		if err := d.server.refuse(to); err != nil {
			return err
		}
	}
	d.to = append(d.to, to)
	return nil
}

// errMalformed is for what none of our mailers sends.
var errMalformed = &smtp.SMTPError{Code: 554, EnhancedCode: smtp.EnhancedCode{5, 6, 0}, Message: "no mail of this program"}

// Data takes the mail itself.
func (d *delivery) Data(r io.Reader) error {
	m, err := mail.ReadMessage(r)
	if err != nil {
		return errMalformed
	}
	granted, err := strconv.ParseInt(m.Header.Get(GrantedHeader), 10, 64)
	id := m.Header.Get("Message-ID")
	if err != nil || id == "" || len(d.to) != 1 {
		return errMalformed
	}
	if _, err := io.Copy(io.Discard, m.Body); err != nil {
		return err
	}
	d.server.accept(Arrival{ID: id, To: d.to[0], Granted: time.UnixMicro(granted)})
	return nil
}

// Reset forgets the mail.
func (d *delivery) Reset() { d.to = nil }

// Logout has nothing to end.
func (d *delivery) Logout() error { return nil }
