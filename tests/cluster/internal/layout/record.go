package layout

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
)

// Record is what `up` leaves for the commands that come after it.
type Record struct {
	Generation string `json:"generation"`
	Ports      Ports  `json:"ports"`
	// Complete is set once the cluster was ready: anything else is the remains of
	// an `up` that was killed, and cannot be repaired.
	Complete bool `json:"complete"`
}

// ReadRecord returns a zero Record, with default ports, if there is no cluster.
func (l Layout) ReadRecord() (Record, error) {
	record := Record{Ports: DefaultPorts}
	content, err := os.ReadFile(l.Path("cluster.json"))
	if errors.Is(err, fs.ErrNotExist) {
		return record, nil
	}
	if err != nil {
		return record, err
	}
	if err := json.Unmarshal(content, &record); err != nil {
		// A torn write of a killed run: as good as no cluster.
		return Record{Ports: DefaultPorts}, nil
	}
	return record, nil
}

// WriteRecord replaces the record atomically.
func (l Layout) WriteRecord(record Record) error {
	content, err := json.Marshal(record)
	if err != nil {
		return err
	}
	return WriteFile(l.Path("cluster.json"), content, 0o644)
}

// WriteFile writes a file so that readers see either the old or the new content.
func WriteFile(path string, content []byte, mode fs.FileMode) error {
	temporary := fmt.Sprintf("%s.%d.tmp", path, os.Getpid())
	if err := os.WriteFile(temporary, content, mode); err != nil {
		return err
	}
	return os.Rename(temporary, path)
}
