import java.io.IOException;
import java.io.InputStream;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Map;
import java.util.Optional;
import org.apache.kafka.server.log.remote.storage.LogSegmentData;
import org.apache.kafka.server.log.remote.storage.RemoteLogSegmentMetadata;
import org.apache.kafka.server.log.remote.storage.RemoteLogSegmentMetadata.CustomMetadata;
import org.apache.kafka.server.log.remote.storage.RemoteResourceNotFoundException;
import org.apache.kafka.server.log.remote.storage.RemoteStorageException;
import org.apache.kafka.server.log.remote.storage.RemoteStorageManager;

/** Keeps the segments that a broker tiers in the directory that the property `dir` names: as little as a test needs. */
public class DirectoryRemoteStorage implements RemoteStorageManager {
    private Path directory;

    @Override
    public void configure(Map<String, ?> configs) {
        directory = Path.of((String) configs.get("dir"));
    }

    @Override
    public Optional<CustomMetadata> copyLogSegmentData(RemoteLogSegmentMetadata metadata, LogSegmentData data)
            throws RemoteStorageException {
        try {
            Files.createDirectories(directory);
            Files.copy(data.logSegment(), path(metadata, "log"));
            Files.copy(data.offsetIndex(), path(metadata, "OFFSET"));
            Files.copy(data.timeIndex(), path(metadata, "TIMESTAMP"));
            Files.copy(data.producerSnapshotIndex(), path(metadata, "PRODUCER_SNAPSHOT"));
            if (data.transactionIndex().isPresent()) {
                Files.copy(data.transactionIndex().get(), path(metadata, "TRANSACTION"));
            }
            ByteBuffer epochs = data.leaderEpochIndex();
            byte[] content = new byte[epochs.remaining()];
            epochs.get(content);
            Files.write(path(metadata, "LEADER_EPOCH"), content);
        } catch (IOException error) {
            throw new RemoteStorageException(error);
        }
        byte[] name = path(metadata, "log").getFileName().toString().getBytes(StandardCharsets.UTF_8);
        return Optional.of(new CustomMetadata(name));
    }

    @Override
    public InputStream fetchLogSegment(RemoteLogSegmentMetadata metadata, int start) throws RemoteStorageException {
        return fetchLogSegment(metadata, start, Integer.MAX_VALUE);
    }

    @Override
    public InputStream fetchLogSegment(RemoteLogSegmentMetadata metadata, int start, int end)
            throws RemoteStorageException {
        try {
            InputStream stream = Files.newInputStream(path(metadata, "log"));
            stream.skipNBytes(start);
            return stream;
        } catch (IOException error) {
            throw new RemoteStorageException(error);
        }
    }

    @Override
    public InputStream fetchIndex(RemoteLogSegmentMetadata metadata, IndexType kind) throws RemoteStorageException {
        Path path = path(metadata, kind.name());
        if (!Files.exists(path)) {
            throw new RemoteResourceNotFoundException(path.toString());
        }
        try {
            return Files.newInputStream(path);
        } catch (IOException error) {
            throw new RemoteStorageException(error);
        }
    }

    @Override
    public void deleteLogSegmentData(RemoteLogSegmentMetadata metadata) {}

    @Override
    public void close() {}

    private Path path(RemoteLogSegmentMetadata metadata, String kind) {
        return directory.resolve(metadata.remoteLogSegmentId().id() + "." + kind);
    }
}
