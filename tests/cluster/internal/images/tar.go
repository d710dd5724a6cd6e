package images

import (
	"archive/tar"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// writeTar writes a layer's uncompressed content.
func writeTar(to io.Writer, source Layer) error {
	writer := tar.NewWriter(to)
	info, err := os.Stat(source.From)
	if err != nil {
		return err
	}
	switch {
	case source.Archive:
		err = repack(writer, source)
	case info.IsDir():
		err = writeFolder(writer, source)
	default:
		err = writeFile(writer, source, info)
	}
	if err != nil {
		return err
	}
	return writer.Close()
}

func writeFile(writer *tar.Writer, source Layer, info fs.FileInfo) error {
	if err := writeParents(writer, source.To); err != nil {
		return err
	}
	mode, err := source.mode(normalMode(info.Mode()))
	if err != nil {
		return err
	}
	return writeRegular(writer, source.From, memberName(source.To), mode, info.Size())
}

func writeFolder(writer *tar.Writer, source Layer) error {
	mode, err := source.mode(0o755)
	if err != nil {
		return err
	}
	if err := writeParents(writer, source.To); err != nil {
		return err
	}
	// WalkDir is in lexical order, so the result does not depend on the file system's.
	return filepath.WalkDir(source.From, func(file string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		relative, err := filepath.Rel(source.From, file)
		if err != nil {
			return err
		}
		name := memberName(path.Join(source.To, filepath.ToSlash(relative)))
		if relative == "." {
			return writeDirectory(writer, name, mode)
		}
		return writeEntry(writer, file, name, entry)
	})
}

func writeEntry(writer *tar.Writer, file, name string, entry fs.DirEntry) error {
	info, err := entry.Info()
	if err != nil {
		return err
	}
	switch {
	case info.IsDir():
		return writeDirectory(writer, name, 0o755)
	case info.Mode().IsRegular():
		return writeRegular(writer, file, name, normalMode(info.Mode()), info.Size())
	case info.Mode()&fs.ModeSymlink != 0:
		target, err := os.Readlink(file)
		if err != nil {
			return err
		}
		return writer.WriteHeader(header(tar.Header{Typeflag: tar.TypeSymlink, Name: name, Linkname: target, Mode: 0o777}))
	default:
		return fmt.Errorf("%s is neither a file, a folder nor a link", file)
	}
}

func writeRegular(writer *tar.Writer, file, name string, mode, size int64) error {
	opened, err := os.Open(file)
	if err != nil {
		return err
	}
	defer opened.Close()
	if err := writer.WriteHeader(header(tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: mode, Size: size})); err != nil {
		return err
	}
	if _, err := io.Copy(writer, opened); err != nil {
		return fmt.Errorf("%s (did it change meanwhile?): %w", file, err)
	}
	return nil
}

// writeParents writes the folders above a path, as an unpacker may make missing ones
// with any mode.
func writeParents(writer *tar.Writer, to string) error {
	parent := ""
	for _, element := range strings.Split(path.Dir(memberName(to)), "/") {
		if element == "." || element == "" {
			continue
		}
		parent = path.Join(parent, element)
		if err := writeDirectory(writer, parent, 0o755); err != nil {
			return err
		}
	}
	return nil
}

func writeDirectory(writer *tar.Writer, name string, mode int64) error {
	if name == "" {
		return nil // the root itself
	}
	return writer.WriteHeader(header(tar.Header{Typeflag: tar.TypeDir, Name: name + "/", Mode: mode}))
}

// repack copies an archive, below another folder, without its times.
func repack(writer *tar.Writer, source Layer) error {
	opened, err := os.Open(source.From)
	if err != nil {
		return err
	}
	defer opened.Close()
	reader := tar.NewReader(opened)
	for {
		entry, err := reader.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("not an uncompressed tar archive: %w", err)
		}
		name := memberName(path.Join(source.To, entry.Name))
		if name == "" || entry.Typeflag == tar.TypeXGlobalHeader {
			continue
		}
		copied := tar.Header{Typeflag: entry.Typeflag, Name: name, Linkname: entry.Linkname, Mode: entry.Mode,
			Size: entry.Size, Uid: entry.Uid, Gid: entry.Gid, Devmajor: entry.Devmajor, Devminor: entry.Devminor}
		if entry.Typeflag == tar.TypeLink { // hard links name another member
			copied.Linkname = memberName(path.Join(source.To, entry.Linkname))
		}
		if entry.Typeflag == tar.TypeDir {
			copied.Name += "/"
		}
		if err := writer.WriteHeader(header(copied)); err != nil {
			return err
		}
		if _, err := io.Copy(writer, reader); err != nil {
			return err
		}
	}
}

func header(h tar.Header) *tar.Header {
	h.ModTime = time.Unix(0, 0)
	return &h
}

// memberName is a path as layers name it: relative to the root.
func memberName(file string) string { return strings.TrimPrefix(path.Clean("/"+file), "/") }

func sortedKeys(of map[string]string) []string { return slices.Sorted(maps.Keys(of)) }
