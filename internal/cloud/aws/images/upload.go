package images

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/ebs"
	ebstypes "github.com/aws/aws-sdk-go-v2/service/ebs/types"
	"github.com/aws/aws-sdk-go-v2/service/ec2"
	"github.com/aws/aws-sdk-go-v2/service/ec2/types"
)

const (
	// blockSize is of all blocks of snapshots, in bytes, and gib of what a disk's size is a
	// multiple. Source: EBS direct APIs reference (2019-11-02), PutSnapshotBlock.
	blockSize = 512 << 10
	gib       = 1 << 30
	// workers is how many blocks are on their way at the same time; each takes a block of
	// memory. EBS takes 1,000 a second of an account.
	workers = 16
	// abandoned is after how many minutes without a block EBS cancels a snapshot; it is the
	// least that it takes.
	abandoned = 10
	// undoLimit bounds the removal of a snapshot whose upload has failed.
	undoLimit = time.Minute
	// everyPercent is how often the progress is told.
	everyPercent = 5
)

// upload makes a snapshot of a disk, and returns when it is complete. One that fails is
// removed.
func (p *Publisher) upload(ctx context.Context, disk *os.File, size int64, tags map[string]string) (id string, err error) {
	in := &ebs.StartSnapshotInput{
		VolumeSize:  aws.Int64((size + gib - 1) / gib),
		Description: aws.String(tags["Name"] + " " + tags[TagDigest]),
		Timeout:     aws.Int32(abandoned),
	}
	for _, k := range keys(tags) {
		in.Tags = append(in.Tags, ebstypes.Tag{Key: aws.String(k), Value: aws.String(tags[k])})
	}
	started, err := p.blocks.StartSnapshot(ctx, in) // the SDK adds a token, for its own tries
	if err != nil {
		return "", fmt.Errorf("start a snapshot: %w", withKey(err))
	}
	id = aws.ToString(started.SnapshotId)
	defer func() {
		if err == nil {
			return
		}
		undo, cancel := context.WithTimeout(context.WithoutCancel(ctx), undoLimit)
		defer cancel()
		_, undone := p.api.DeleteSnapshot(undo, &ec2.DeleteSnapshotInput{SnapshotId: aws.String(id)})
		if undone != nil {
			undone = fmt.Errorf("remove the snapshot %s again: %w", id, undone)
		}
		err = errors.Join(fmt.Errorf("upload the snapshot %s: %w", id, withKey(err)), undone)
	}()
	if got := aws.ToInt32(started.BlockSize); got != blockSize {
		return id, fmt.Errorf("EBS has blocks of %d bytes, and this program of %d", got, blockSize)
	}
	sums, err := p.put(ctx, id, disk, size)
	if err != nil {
		return id, err
	}
	all, written := sha256.New(), int32(0)
	for _, sum := range sums {
		if sum != nil {
			all.Write(sum[:])
			written++
		}
	}
	_, err = p.blocks.CompleteSnapshot(ctx, &ebs.CompleteSnapshotInput{
		SnapshotId:                aws.String(id),
		ChangedBlocksCount:        aws.Int32(written),
		Checksum:                  aws.String(base64.StdEncoding.EncodeToString(all.Sum(nil))),
		ChecksumAlgorithm:         ebstypes.ChecksumAlgorithmChecksumAlgorithmSha256,
		ChecksumAggregationMethod: ebstypes.ChecksumAggregationMethodChecksumAggregationLinear,
	})
	if err != nil {
		return id, err
	}
	p.cfg.Say("uploaded %d MB into the snapshot %s", int64(written)*blockSize/1e6, id)
	return id, p.completed(ctx, id)
}

// withKey says what to do about an error of EBS that another service has caused. That is KMS: an account may encrypt by default, with
// a key of its own. Source: EBS direct APIs reference (2019-11-02), AccessDeniedException.
func withKey(err error) error {
	denied, is := errors.AsType[*ebstypes.AccessDeniedException](err)
	if !is || denied.Reason != ebstypes.AccessDeniedExceptionReasonDependencyAccessDenied {
		return err
	}
	return fmt.Errorf("EBS may not use the KMS key that encrypts snapshots in this account: enable it, and let this role use it "+
		"(the key's policy, and the statements GrantsTheKey and UsesTheKey of docs/boot-image.md): %w", err)
}

// put writes the blocks that are not all zeros, and returns their checksums, by index.
func (p *Publisher) put(ctx context.Context, id string, disk io.ReaderAt, size int64) ([]*[sha256.Size]byte, error) {
	sums := make([]*[sha256.Size]byte, (size+blockSize-1)/blockSize)
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	next := make(chan int)
	var all sync.WaitGroup
	var mu sync.Mutex
	done, told := 0, 0
	finished := func() {
		mu.Lock()
		defer mu.Unlock()
		done++
		if percent := done * 100 / len(sums); percent >= told+everyPercent {
			told = percent - percent%everyPercent
			p.cfg.Say("uploaded %d %%", told)
		}
	}
	for range workers {
		all.Go(func() {
			block := make([]byte, blockSize)
			for i := range next {
				sum, err := p.putOne(ctx, id, disk, i, block)
				if err != nil {
					stop(fmt.Errorf("block %d: %w", i, err))
					return
				}
				sums[i] = sum
				finished()
			}
		})
	}
feed:
	for i := range sums {
		select {
		case next <- i:
		case <-ctx.Done():
			break feed
		}
	}
	close(next)
	all.Wait()
	return sums, context.Cause(ctx)
}

var zeros = make([]byte, blockSize)

// putOne writes one block, which is read into memory that is the caller's. It returns nil
// for one that need not be written.
func (p *Publisher) putOne(ctx context.Context, id string, disk io.ReaderAt, index int, block []byte) (*[sha256.Size]byte, error) {
	n, err := disk.ReadAt(block, int64(index)*blockSize)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	clear(block[n:])
	if bytes.Equal(block, zeros) {
		return nil, nil
	}
	sum := sha256.Sum256(block)
	_, err = p.blocks.PutSnapshotBlock(ctx, &ebs.PutSnapshotBlockInput{
		SnapshotId:        aws.String(id),
		BlockIndex:        aws.Int32(int32(index)),
		BlockData:         bytes.NewReader(block),
		DataLength:        aws.Int32(blockSize),
		Checksum:          aws.String(base64.StdEncoding.EncodeToString(sum[:])),
		ChecksumAlgorithm: ebstypes.ChecksumAlgorithmChecksumAlgorithmSha256,
	})
	return &sum, err
}

// completed waits until a snapshot can be used.
func (p *Publisher) completed(ctx context.Context, id string) error {
	return p.wait(ctx, "the snapshot "+id, func() (done bool, err error) {
		found, err := p.snapshots(ctx, types.Filter{Name: aws.String("snapshot-id"), Values: []string{id}})
		if err != nil || len(found) == 0 { // a list is late
			return false, err
		}
		switch found[0].State {
		case types.SnapshotStateCompleted:
			return true, nil
		case types.SnapshotStateError:
			return false, fmt.Errorf("EBS says: error, %s", aws.ToString(found[0].StateMessage))
		}
		return false, nil
	})
}
