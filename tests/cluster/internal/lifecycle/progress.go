package lifecycle

import (
	"fmt"
	"io"
	"sync"
	"time"
)

// Progress says on a terminal what is happening and for how long already.
type Progress struct {
	out   io.Writer
	start time.Time
	mutex sync.Mutex
}

// NewProgress starts the clock.
func NewProgress(out io.Writer) *Progress { return &Progress{out: out, start: time.Now()} }

// Say reports a step.
func (p *Progress) Say(format string, arguments ...any) {
	p.mutex.Lock()
	defer p.mutex.Unlock()
	fmt.Fprintf(p.out, "[%5.1fs] %s\n", time.Since(p.start).Seconds(), fmt.Sprintf(format, arguments...))
}

// Done reports the last step.
func (p *Progress) Done(message string) { p.Say("%s", message) }
